// SPDX-License-Identifier: Apache-2.0
//! Tables of functions, looked up in a shared library once, when it is opened.
//!
//! cudarc declares every function, but its wrappers panic if a library or symbol is missing. They
//! also return an enum, and a newer library may return values outside of it. So only the types of
//! the declarations are used. Each entry is checked against cudarc's at compile time, and calls
//! return plain integers.

/// Declares a struct with one function pointer per line, and its constructor `load`.
///
/// - `name | older(types)` uses the older symbol if the first is missing.
/// - Functions under `optional` may be missing.
/// - Functions under `unchecked` take an integer where the header has an enum.
macro_rules! function_table {
    (
        $(#[$doc:meta])*
        struct $table:ident from $sys:path => $status:ty {
            $($name:ident $(| $older:ident)? ($($arg:ty),* $(,)?);)*
        }
        optional {
            $($maybe:ident ($($maybe_arg:ty),* $(,)?);)*
        }
        unchecked {
            $($raw:ident ($($raw_arg:ty),* $(,)?);)*
        }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(super) struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> i32,)*
            $(pub $raw: unsafe extern "C" fn($($raw_arg),*) -> i32,)*
            $(pub $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) -> i32>,)*
        }

        // Checks the signatures against those that cudarc generated from NVIDIA's headers.
        const _: () = {
            use $sys as sys;
            $(const _: unsafe fn($($arg),*) -> $status = sys::$name;)*
            $(const _: unsafe fn($($maybe_arg),*) -> $status = sys::$maybe;)*
        };

        #[allow(non_snake_case)]
        impl $table {
            /// Looks up every function, or returns the name of the first missing one.
            fn load(library: libloading::Library) -> std::result::Result<Self, &'static str> {
                // Never unloaded: NVIDIA's libraries start threads and register exit handlers.
                let library = std::mem::ManuallyDrop::new(library);
                $(
                    // SAFETY: the signature is that of the vendor's header (checked above), with
                    // the status as an integer, as in C. The library is never unloaded.
                    let $name = unsafe {
                        let found = library.get::<unsafe extern "C" fn($($arg),*) -> i32>(
                            concat!(stringify!($name), "\0").as_bytes(),
                        );
                        $(let found = found.or_else(|_| library.get(concat!(stringify!($older), "\0").as_bytes()));)?
                        *found.map_err(|_| stringify!($name))?
                    };
                )*
                $(
                    // SAFETY: as above.
                    let $maybe = unsafe {
                        library
                            .get::<unsafe extern "C" fn($($maybe_arg),*) -> i32>(
                                concat!(stringify!($maybe), "\0").as_bytes(),
                            )
                            .ok()
                            .map(|found| *found)
                    };
                )*
                $(
                    // SAFETY: as above, except for arguments that the vendor's header declares as
                    // an enum.
                    let $raw = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($raw_arg),*) -> i32>(concat!(stringify!($raw), "\0").as_bytes())
                            .map_err(|_| stringify!($raw))?
                    };
                )*
                Ok(Self { $($name,)* $($raw,)* $($maybe,)* })
            }
        }
    };
}

pub(super) use function_table;
