//! Rebuilds when a file of the edge appears or goes: the embedding macro only follows the files that it has seen.

fn main() {
    println!("cargo::rerun-if-changed=../../nginx");
    println!("cargo::rerun-if-changed=../../lua");
}
