/// The name of this machine; empty if it has none. It is not read from `/proc`, where a service with `ProcSubset=pid` does not
/// find it.
pub fn host_name() -> String {
    let name = nix::sys::utsname::uname();
    name.map(|name| name.nodename().to_string_lossy().trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_kernel() {
        assert_eq!(host_name(), std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim());
    }
}
