// SPDX-License-Identifier: Apache-2.0
//! The kernels of a program as functions of a megakernel, see [`MegakernelPart`].

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use device::MegakernelPart;

use super::program::{Kernel, functions, with_names};
use crate::codegen::Profile;

const NAME: &str = "megakernel";

/// The kernel before its first statement.
const BEGIN: &str = "KERNEL void megakernel(const G u64 *RESTRICT args, u32 position) {
  LEAVE_DRY_LAUNCH();
";

/// Only kernels can have shared memory and barriers.
const OF_KERNELS_ONLY: [&str; 2] = ["SHARED(", "SYNC("];

/// Named kernels of the cpu profile as functions; `None` if one cannot be one. `common` is C of
/// other programs too, by number.
pub(super) fn megakernel_part(common: Vec<(u32, &'static str)>, kernels: &[(&Kernel, &str)]) -> Option<MegakernelPart> {
    if kernels.iter().any(|(kernel, _)| OF_KERNELS_ONLY.iter().any(|word| kernel.body.contains(word))) {
        return None;
    }
    let mut own = String::new();
    let mut names: Vec<&str> = Vec::new();
    for function in functions(kernels.iter().map(|(kernel, _)| *kernel)) {
        names.extend(function_names(function));
        own.push_str(function);
    }
    for (kernel, name) in kernels {
        let params = kernel.params.all_in_table();
        let definition = format!("({}) {{\n{}}}\n", params.declaration(), params.with_table(&kernel.body, Profile::Cpu));
        own.push_str(&format!("FN void {name}{}", kernel.renumber(&definition)));
        names.push(name);
    }
    // Names that depend on the whole text: no other program has them.
    let mut hasher = DefaultHasher::new();
    (&own, &common).hash(&mut hasher);
    let suffix = hasher.finish();
    let unique: HashMap<String, String> =
        names.into_iter().map(|name| (name.to_owned(), format!("{name}_{suffix:016x}"))).collect();
    let of_kernels = kernels.iter().map(|(_, name)| unique[*name].clone()).collect();
    Some(MegakernelPart { name: NAME, begin: BEGIN, common, own: with_names(&own, &unique), functions: of_kernels })
}

/// The names of the functions that C defines.
fn function_names(source: &str) -> impl Iterator<Item = &str> {
    let is_definition = |line: &&str| line.starts_with("FN ") || line.starts_with("COLD_FN ");
    let heads = source.lines().filter(is_definition).filter_map(|line| line.split_once('('));
    heads.filter_map(|(head, _)| head.rsplit([' ', '*']).next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::Params;

    fn kernel(body: &str) -> Kernel {
        let mut params = Params::new();
        for name in ["x", "n"] {
            params.named(name, if name == "n" { "u64" } else { "G u64 *RESTRICT" });
        }
        params.function("/* Twice. */\nFN u64 *twice(u64 a) { return 0; }\nCOLD_FN u64 same(u64 a) { return a; }\n".into());
        Kernel::new("k0", params, body.into())
    }

    #[test]
    fn names_depend_on_the_text() {
        let part = |body: &str| megakernel_part(vec![(0, "common")], &[(&kernel(body), "k0"), (&kernel(body), "k1")]).unwrap();
        let (one, other) = (part("  x[0] = same(n);\n"), part("  x[0] = same(n + 1);\n"));
        let [first, second] = one.functions.as_slice() else { panic!("{:?}", one.functions) };
        let suffix = first.strip_prefix("k0_").unwrap();
        assert_eq!(*second, format!("k1_{suffix}"));
        assert!(!other.own.contains(suffix) && other.functions != one.functions);
        // Arguments come from memory, and called functions have names of their own.
        let expected = format!("FN void {first}(const G u64 *RESTRICT args) {{\n  G u64 *RESTRICT x = ((G u64 *)args[0]);\n");
        assert!(one.own.contains(&expected), "{}", one.own);
        assert!(one.own.contains(&format!("x[0] = same_{suffix}(n);")), "{}", one.own);
        assert_eq!(one.own.matches(&format!("twice_{suffix}(")).count(), 1);
    }

    #[test]
    fn kernels_with_shared_memory_or_barriers_are_no_functions() {
        for body in ["  SHARED(u64, words, 8);\n", "  SYNC();\n"] {
            assert!(megakernel_part(vec![], &[(&kernel(body), "k0")]).is_none(), "{body}");
        }
    }
}
