// SPDX-License-Identifier: Apache-2.0
//! Loaded modules and their functions.

use std::collections::HashMap;

use cudarc::driver::sys::CUmodule;

use super::api::Api;
use crate::driver::RawArg;

/// The target of this driver's [`RawProgram`](crate::driver::RawProgram).
pub(super) struct Module {
    pub api: &'static Api,
    /// `CUmodule`.
    pub handle: usize,
    /// Boxed, since a [`RawKernel`](crate::driver::RawKernel) points to one.
    pub functions: HashMap<String, Box<Function>>,
}

impl Drop for Module {
    /// Requires that the context is current.
    fn drop(&mut self) {
        // SAFETY: this is the module's last use. In a lost context the call fails without effect.
        unsafe { (self.api.cuModuleUnload)(self.handle as CUmodule) };
    }
}

/// The target of this driver's [`RawKernel`](crate::driver::RawKernel).
pub(super) struct Function {
    /// `CUfunction`.
    pub handle: usize,
    /// Bytes of each parameter; empty where unknown.
    pub parameters: Vec<usize>,
}

impl Function {
    /// The reason why `args` do not match the parameters; `None` if they match. CUDA itself reads
    /// as many bytes as the kernel declares.
    pub fn mismatch(&self, args: &[RawArg<'_>]) -> Option<String> {
        if self.parameters.is_empty() {
            return None;
        }
        if self.parameters.len() != args.len() {
            return Some(format!("{} arguments given, the kernel has {}", args.len(), self.parameters.len()));
        }
        let widths = args.iter().map(|arg| if let RawArg::Value(bytes) = arg { bytes.len() } else { 8 });
        let wrong = self.parameters.iter().zip(widths).enumerate().find(|(_, (parameter, width))| **parameter != *width);
        wrong.map(|(index, (parameter, width))| format!("argument {index} takes {parameter} bytes, got {width}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Memory;

    #[test]
    fn arguments_must_fit_the_parameters() {
        let memory = RawArg::Memory(Memory { handle: 0, bytes: 1, host: 0 });
        let function = Function { handle: 0, parameters: vec![8, 4] };
        assert_eq!(function.mismatch(&[memory, RawArg::Value(&[0; 4])]), None);
        assert_eq!(function.mismatch(&[memory, memory]).as_deref(), Some("argument 1 takes 4 bytes, got 8"));
        assert_eq!(function.mismatch(&[memory]).as_deref(), Some("1 arguments given, the kernel has 2"));
        let unknown = Function { handle: 0, parameters: vec![] };
        assert_eq!(unknown.mismatch(&[memory]), None);
    }
}
