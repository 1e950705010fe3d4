// SPDX-License-Identifier: Apache-2.0
//! Sets the soname of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdevicefusion.so.0");
    }
}
