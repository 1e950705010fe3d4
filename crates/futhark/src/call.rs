// SPDX-License-Identifier: Apache-2.0
//! Calls of C functions whose types come from the manifest.

use libffi::middle::{Arg, Cif, CodePtr, Type, arg};

use crate::library::{FnAddress, Raw};
use crate::manifest::Kind;
use crate::value::{Origins, ResultSlot};
use crate::{Context, Error, Result, Value};

/// An argument of an entry point.
#[derive(Debug)]
pub enum Argument<'a> {
    /// A value that stays the caller's.
    Borrowed(&'a Value),
    /// A value that the call may consume.
    Owned(Value),
}

impl<'a> From<&'a Value> for Argument<'a> {
    fn from(value: &'a Value) -> Self {
        Argument::Borrowed(value)
    }
}

impl<T: Into<Value>> From<T> for Argument<'_> {
    fn from(value: T) -> Self {
        Argument::Owned(value.into())
    }
}

impl Argument<'_> {
    fn value(&self) -> &Value {
        match self {
            Argument::Borrowed(value) => value,
            Argument::Owned(value) => value,
        }
    }
}

impl From<FnAddress> for CodePtr {
    fn from(function: FnAddress) -> CodePtr {
        CodePtr::from_ptr(function.0)
    }
}

/// A C function `int f(context, out…, in…)` of a library, with its arguments.
pub(crate) struct LibraryCall<'a> {
    /// Name, for errors.
    pub name: &'a str,
    pub function: FnAddress,
    /// Futhark types of the results.
    pub outputs: &'a [&'a str],
    pub arguments: &'a [Arg<'a>],
    /// C types of the arguments.
    pub types: &'a [Type],
}

impl Context {
    /// Calls an entry point, and waits for its results.
    ///
    /// Futhark overwrites consumed arguments. They must be owned, and share their memory with no
    /// other live value. Results that are not unique may share memory with arguments and with each
    /// other.
    ///
    /// # Errors
    /// - [`Error::Usage`] for an unknown entry point, or an argument that does not fit.
    /// - [`Error::Program`], [`Error::OutOfMemory`] or [`Error::Failed`] if the program fails, at
    ///   the call or at the wait.
    pub fn call(&self, entry_point: &str, arguments: Vec<Argument<'_>>) -> Result<Vec<Value>> {
        let manifest = self.library().manifest();
        let entry = manifest.entry_point(entry_point)?;
        let types: Vec<&str> = entry.inputs.iter().map(|input| input.type_name.as_str()).collect();
        let values: Vec<&Value> = arguments.iter().map(Argument::value).collect();
        self.check_arguments(entry_point, &types, &values)?;
        let mut shared = Origins::fresh();
        let mut consumed = Origins::default();
        for (position, (input, argument)) in entry.inputs.iter().zip(&arguments).enumerate() {
            let value = argument.value();
            if !input.unique || value.handle().is_none() {
                shared.extend(&value.origins());
                continue;
            }
            let sole = value.handle().is_some_and(|handle| handle.origins.are_sole());
            if !matches!(argument, Argument::Owned(_)) || !sole {
                let problem = if sole { "must be owned, not borrowed" } else { "shares its memory with another value" };
                return Err(Error::Usage(format!("{entry_point} consumes argument {}, which {problem}", position + 1)));
            }
            consumed.extend(&value.origins().buffers());
        }
        let function = self.library().entry(entry_point);
        let function = function.ok_or_else(|| Error::Usage(format!("there is no entry point {entry_point}")))?;
        let outputs: Vec<&str> = entry.outputs.iter().map(|output| output.type_name.as_str()).collect();
        let passed: Vec<Arg<'_>> = values.into_iter().map(Value::ffi).collect();
        let ffi: Vec<Type> = types.iter().map(|name| self.ffi(name)).collect();
        let origins = |index: usize| {
            let mut origins = match entry.outputs.get(index) {
                Some(output) if output.unique => Origins::fresh(),
                _ => shared.clone(),
            };
            // A result may reuse the memory of a consumed argument.
            origins.extend(&consumed);
            origins
        };
        let call = LibraryCall { name: &entry.cfun, function, outputs: &outputs, arguments: &passed, types: &ffi };
        self.with(|context| self.invoke(context, &call, origins))
    }

    /// Calls a function of the library under the lock, and waits. `origins` gives the memory that a
    /// result may share.
    pub(crate) fn invoke(&self, context: Raw, call: &LibraryCall<'_>, origins: impl Fn(usize) -> Origins) -> Result<Vec<Value>> {
        let LibraryCall { name, function, outputs, arguments, types } = *call;
        let mut slots = vec![ResultSlot::EMPTY; outputs.len()];
        let pointers: Vec<Raw> = slots.iter_mut().map(|slot| (&raw mut *slot).cast()).collect();
        let mut all_types = vec![Type::pointer(); 1 + pointers.len()];
        all_types.extend(types.iter().cloned());
        let cif = Cif::new(all_types, Type::c_int());
        let mut passed = vec![arg(&context)];
        passed.extend(pointers.iter().map(arg));
        passed.extend(arguments.iter().cloned());
        // SAFETY: the manifest gives the types; each slot holds a scalar or a pointer; arguments
        // are live.
        let status: i32 = unsafe { cif.call(function.into(), &passed) };
        self.check(context, name, status)?;
        // Adopted before any error returns, so that every result is freed.
        let results = outputs.iter().zip(slots).enumerate();
        let values: Vec<Result<Value>> =
            results.map(|(index, (type_name, slot))| self.adopt(context, name, type_name, slot, origins(index))).collect();
        self.sync_held(context, name)?;
        values.into_iter().collect()
    }

    /// Checks the number, types and context of arguments.
    pub(crate) fn check_arguments(&self, function: &str, types: &[&str], values: &[&Value]) -> Result<()> {
        if types.len() != values.len() {
            return Err(Error::Usage(format!("{function} takes {} arguments, not {}", types.len(), values.len())));
        }
        for (position, (expected, value)) in types.iter().zip(values).enumerate() {
            let (position, actual) = (position + 1, value.type_name());
            if actual != *expected {
                return Err(Error::Usage(format!("argument {position} of {function} is of type {actual}, must be {expected}")));
            }
            if value.handle().is_some_and(|handle| !handle.context.same(self)) {
                return Err(Error::Usage(format!("argument {position} of {function} belongs to another context")));
            }
        }
        Ok(())
    }

    /// The C type of a parameter.
    pub(crate) fn ffi(&self, type_name: &str) -> Type {
        match self.library().manifest().kind(type_name) {
            Some(Kind::Scalar(primitive)) => primitive.ffi(),
            _ => Type::pointer(),
        }
    }
}
