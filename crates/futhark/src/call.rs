// SPDX-License-Identifier: Apache-2.0
//! Calls whose types only the manifest knows.

use libffi::middle::{Arg, Cif, CodePtr, Type, arg};

use crate::library::{Code, Raw};
use crate::manifest::Kind;
use crate::value::{Origins, Room};
use crate::{Context, Error, Result, Value};

/// What an entry point is given.
#[derive(Debug)]
pub enum Argument<'a> {
    /// A value that stays the caller's.
    Lent(&'a Value),
    /// A value that the call may consume.
    Given(Value),
}

impl<'a> From<&'a Value> for Argument<'a> {
    fn from(value: &'a Value) -> Self {
        Argument::Lent(value)
    }
}

impl<T: Into<Value>> From<T> for Argument<'_> {
    fn from(value: T) -> Self {
        Argument::Given(value.into())
    }
}

impl Argument<'_> {
    fn value(&self) -> &Value {
        match self {
            Argument::Lent(value) => value,
            Argument::Given(value) => value,
        }
    }
}

impl From<Code> for CodePtr {
    fn from(code: Code) -> CodePtr {
        CodePtr::from_ptr(code.0)
    }
}

impl Context {
    /// Calls an entry point, and waits until what it gives is there.
    ///
    /// What it consumes must be given, not lent, and share its memory with no other value that still exists: Futhark
    /// overwrites it. Results that are not unique may share memory with arguments and with each other.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such entry point, or an argument does not fit; [`Error::Program`], [`Error::OutOfMemory`] or
    /// [`Error::Failed`] if the program fails, at once or later.
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
            if !matches!(argument, Argument::Given(_)) || !sole {
                let problem = if sole { "must be given, not lent" } else { "shares its memory with another value" };
                return Err(Error::Usage(format!("{entry_point} consumes argument {}, which {problem}", position + 1)));
            }
            consumed.extend(&value.origins().buffers());
        }
        let code = self.library().entry(entry_point);
        let code = code.ok_or_else(|| Error::Usage(format!("there is no entry point {entry_point}")))?;
        let outputs: Vec<&str> = entry.outputs.iter().map(|output| output.type_name.as_str()).collect();
        let passed: Vec<Arg<'_>> = values.into_iter().map(Value::ffi).collect();
        let ffi: Vec<Type> = types.iter().map(|name| self.ffi(name)).collect();
        let origins = |index: usize| {
            let mut origins = match entry.outputs.get(index) {
                Some(output) if output.unique => Origins::fresh(),
                _ => shared.clone(),
            };
            // A result may have taken the memory of what was consumed.
            origins.extend(&consumed);
            origins
        };
        self.with(|context| self.invoke(context, &entry.cfun, code, &outputs, &passed, &ffi, origins))
    }

    /// Calls `int f(context, out…, in…)` under the lock, and waits for it. `origins` says what a result may share memory with.
    #[expect(clippy::too_many_arguments, reason = "they are what makes up a call")]
    pub(crate) fn invoke(
        &self,
        context: Raw,
        call: &str,
        code: Code,
        outputs: &[&str],
        arguments: &[Arg<'_>],
        types: &[Type],
        origins: impl Fn(usize) -> Origins,
    ) -> Result<Vec<Value>> {
        let mut rooms = vec![Room::EMPTY; outputs.len()];
        let places: Vec<Raw> = rooms.iter_mut().map(|room| (&raw mut *room).cast()).collect();
        let mut all_types = vec![Type::pointer(); 1 + places.len()];
        all_types.extend(types.iter().cloned());
        let cif = Cif::new(all_types, Type::c_int());
        let mut passed = vec![arg(&context)];
        passed.extend(places.iter().map(arg));
        passed.extend(arguments.iter().cloned());
        // SAFETY: the manifest gives the type; each result has room for a scalar or a pointer; arguments are live.
        let status: i32 = unsafe { cif.call(code.into(), &passed) };
        self.check(context, call, status)?;
        // Taken over before anything else can fail, so that all of them are freed.
        let taken = outputs.iter().zip(rooms).enumerate();
        let values: Vec<Result<Value>> =
            taken.map(|(index, (of, room))| self.adopt(context, call, of, room, origins(index))).collect();
        self.sync_held(context, call)?;
        values.into_iter().collect()
    }

    /// Whether arguments are as many and of the types that are wanted, and of this context.
    pub(crate) fn check_arguments(&self, of: &str, types: &[&str], values: &[&Value]) -> Result<()> {
        if types.len() != values.len() {
            return Err(Error::Usage(format!("{of} takes {} arguments, not {}", types.len(), values.len())));
        }
        for (position, (wanted, value)) in types.iter().zip(values).enumerate() {
            let (position, is) = (position + 1, value.type_name());
            if is != *wanted {
                return Err(Error::Usage(format!("argument {position} of {of} is of type {is}, must be {wanted}")));
            }
            if value.handle().is_some_and(|handle| !handle.context.is(self)) {
                return Err(Error::Usage(format!("argument {position} of {of} belongs to another context")));
            }
        }
        Ok(())
    }

    /// How C is given a value of a type.
    pub(crate) fn ffi(&self, type_name: &str) -> Type {
        match self.library().manifest().kind(type_name) {
            Some(Kind::Scalar(primitive)) => primitive.ffi(),
            _ => Type::pointer(),
        }
    }
}
