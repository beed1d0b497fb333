//! Relocations in few bytes (DT_RELR, glibc 2.36): a fifth of the pages that the monitor has in memory at its start
//! would otherwise be a table that is read once.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target_has = |name: &str, value: &str| std::env::var(name).is_ok_and(|actual| actual == value);
    if target_has("CARGO_CFG_TARGET_OS", "linux") && target_has("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
