//! Rebuilds when a page of the book is added or removed: the macro that embeds them only tracks files that existed before.

fn main() {
    println!("cargo::rerun-if-changed=../docs");
}
