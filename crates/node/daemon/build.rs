//! Has the program's own relocations packed, where the C library can unpack them: they are a megabyte otherwise, which the
//! dynamic linker reads and every running service then keeps resident.

use std::process::Command;

/// From this version on, glibc knows packed relative relocations (`DT_RELR`).
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_native = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
    if is_native && glibc().is_some_and(|version| version >= GLIBC_MIN) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of the C library, where it is glibc.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
