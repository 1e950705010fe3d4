// SPDX-License-Identifier: Apache-2.0
//! Programs that are compiled together. Each run is a process with a folder of PoCL of its own.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::program::NOTES_OF_MEGAKERNELS;
use crate::{Arg, Error, MegakernelPart, MegakernelPartWriter, Parameter};

const FOLDER: &str = "POCL_CACHE_DIR";

/// The variable of the number of a run.
const RUN: &str = "DEVICE_TEST_RUN";

/// A program of two kernels: `f` writes `value` plus an argument, and `g` adds two floats.
fn program_of(value: &str, in_part: &str) -> ProgramSource {
    let leave = "if (get_num_groups(1) != 1) return;";
    let of_f = |value: &str| format!("x[0] = {value} + y;");
    let of_g = "*(G float *)x += a; *(G float *)x += (float)b;";
    let source = format!(
        "KERNEL void f(G int *x, int y) {{ {leave} {} }}\nKERNEL void g(G int *x, float a, double b) {{ {leave} {of_g} }}\n",
        of_f(value)
    );
    let suffix: String = in_part.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let own = format!(
        "static void f_{suffix}(const G ulong *args) {{ G int *x = (G int *)args[0]; int y = (int)args[1]; {} }}\n\
         static void g_{suffix}(const G ulong *args) {{\n\
           G int *x = (G int *)args[0]; float a = as_float((uint)args[1]); double b = as_double(args[2]); {of_g}\n}}\n",
        of_f(in_part)
    );
    let part = MegakernelPart {
        name: "megakernel",
        begin: "KERNEL void megakernel(const G ulong *args, uint position) {\n  if (get_num_groups(1) != 1) return;\n",
        common: vec![(0, DIALECT)],
        own,
        functions: vec![format!("f_{suffix}"), format!("g_{suffix}")],
    };
    let value = |bytes: usize| Parameter::Value(bytes);
    let dry_launches = Arc::new([
        ("f".to_owned(), vec![Parameter::Memory, value(4)]),
        ("g".to_owned(), vec![Parameter::Memory, value(4), value(8)]),
    ]);
    let megakernel_part = Some(MegakernelPartWriter::new(move || Some(part.clone())));
    ProgramSource { dry_launches, megakernel_part, ..ProgramSource::new(in_dialect(&source), "tests") }
}

fn program(number: i32) -> ProgramSource {
    program_of(&number.to_string(), &number.to_string())
}

/// Runs both kernels of a program: the value of `f`, and the sum of `g`.
fn values(queue: &Queue, source: ProgramSource) -> Result<(i32, f32)> {
    let program = block_on(queue.compile(source))?;
    let (x, z) = (queue.alloc_values::<i32>(1)?, queue.upload_values(vec![1.5_f32])?);
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    queue.launch(&program.kernel("f")?, grid, &[(&x).into(), Arg::I32(1000)])?;
    queue.launch(&program.kernel("g")?, grid, &[(&z).into(), Arg::F32(-0.25), Arg::F64(8.0)])?;
    Ok((block_on(queue.read_values(&x, 0..1))?[0], block_on(queue.read_values(&z, 0..1))?[0]))
}

/// A run of a test, in a process of its own.
struct Run {
    number: u32,
    context: Context,
    queue: Queue,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Run {
    /// Compilations so far.
    fn builds(&self) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(": compiled in ")).count()
    }

    fn compiled(&self) -> u64 {
        self.context.counters().programs_compiled
    }
}

/// Has processes run a test one after the other, with a common folder of PoCL. `after` sees it
/// behind each run.
fn runs(name: &str, count: u32, options: &[&str], run: impl FnOnce(Run), after: impl Fn(&Path, u32)) {
    if let Ok(number) = std::env::var(RUN) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&lines);
        let config = config().with_log(Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned())));
        let compile_options = options.iter().map(|option| option.to_string()).collect();
        let context = Context::new(DeviceConfig { compile_options, ..config }).unwrap();
        let queue = context.queue().unwrap();
        if context.info().platform.contains("Portable Computing Language") {
            run(Run { number: number.parse().unwrap(), context, queue, lines });
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=count {
        assert!(!alone_with(name, &[(FOLDER, folder.path()), (RUN, number.to_string().as_ref())]));
        after(folder.path(), number);
    }
    if !folder.path().join(NOTES_OF_MEGAKERNELS).exists() {
        println!("skipped: the device is not PoCL's");
    }
}

const UNOPTIMIZED: &[&str] = &["-cl-opt-disable"];

/// Later processes find the megakernels of earlier ones, whichever programs they need.
#[test]
fn programs_of_a_run_are_compiled_together() {
    const NAME: &str = "tests::megakernels::programs_of_a_run_are_compiled_together";
    let run = |run: Run| {
        let (numbers, builds) = match run.number {
            1 => (0..3, 1),
            // One of them is noted.
            2 => (2..5, 2),
            // All are noted, two megakernels of them.
            3 => (0..5, 2),
            // The notes are damaged.
            _ => (0..5, 1),
        };
        run.queue.compile_ahead(|| numbers.clone().map(program).collect());
        for number in numbers.clone() {
            assert_eq!(values(&run.queue, program(number)).unwrap(), (number + 1000, 9.25), "run {}", run.number);
        }
        assert_eq!((run.builds(), run.compiled()), (builds, numbers.len() as u64), "run {}", run.number);
        // A program that no one has announced.
        assert_eq!(values(&run.queue, program(10)).unwrap(), (1010, 9.25));
        // Programs that are known.
        run.queue.compile_ahead(|| numbers.clone().map(program).collect());
        assert_eq!((run.builds(), run.compiled()), (builds + 1, numbers.len() as u64 + 1), "run {}", run.number);
    };
    let damage = |folder: &Path, run: u32| {
        let notes = std::fs::read_dir(folder.join(NOTES_OF_MEGAKERNELS)).into_iter().flatten();
        let notes: Vec<_> = notes.map(|note| note.unwrap().path()).collect();
        if run == 3 && !notes.is_empty() {
            // Six programs in three megakernels.
            assert_eq!(notes.len(), 9);
            notes.iter().for_each(|note| std::fs::write(note, b"damaged").unwrap());
        }
    };
    runs(NAME, 4, UNOPTIMIZED, run, damage);
}

#[test]
fn a_program_that_fails_leaves_the_others_of_its_megakernel() {
    const NAME: &str = "tests::megakernels::a_program_that_fails_leaves_the_others_of_its_megakernel";
    let run = |Run { queue, lines, .. }: Run| {
        let broken = || program_of("no_such_name", "no_such_name");
        // One whose function alone is wrong.
        let half = || program_of("7", "missing");
        queue.compile_ahead(|| vec![program(1), broken(), program(2), half()]);
        assert_eq!(values(&queue, program(1)).unwrap(), (1001, 9.25));
        assert_eq!(values(&queue, program(2)).unwrap(), (1002, 9.25));
        assert_eq!(values(&queue, half()).unwrap(), (1007, 9.25));
        let compilations = || lines.lock().unwrap().len();
        let before = compilations();
        let error = values(&queue, broken()).unwrap_err();
        // It failed before.
        assert_eq!(compilations(), before);
        let Error::CompileFailed { kernel_source, operator, .. } = error else { panic!("{error}") };
        assert!(kernel_source.contains("KERNEL void f") && operator == "tests", "{operator}: {kernel_source}");
        let lines = lines.lock().unwrap();
        assert!(lines.iter().any(|line| line.starts_with("the megakernel of tests and 3 others failed: ")), "{lines:?}");
    };
    runs(NAME, 1, UNOPTIMIZED, run, |_, _| ());
}

#[test]
fn megakernels_have_few_kernels() {
    const NAME: &str = "tests::megakernels::megakernels_have_few_kernels";
    let run = |run: Run| {
        run.queue.compile_ahead(|| (0..30).map(program).collect());
        for number in 0..30 {
            assert_eq!(values(&run.queue, program(number)).unwrap(), (number + 1000, 9.25));
        }
        // Of 24 programs with two kernels each, and of six.
        assert_eq!((run.builds(), run.compiled()), (2, 30));
    };
    runs(NAME, 1, UNOPTIMIZED, run, |_, _| ());
}

/// A handle of a program has the kernels of its first tier, then the optimized ones.
#[test]
fn programs_of_a_megakernel_are_optimized_one_by_one() {
    const NAME: &str = "tests::megakernels::programs_of_a_megakernel_are_optimized_one_by_one";
    let run = |Run { number, context, queue, .. }: Run| {
        let sources = || ["1", "2"].map(|value| program_of(&format!("{value} + 100"), value));
        // An optimization waits for its end.
        let query = context.begin_query(1);
        queue.compile_ahead(|| sources().to_vec());
        let found = || sources().map(|source| values(&queue, source).unwrap());
        let optimized = [(1101, 9.25), (1102, 9.25)];
        assert_eq!(found(), if number == 1 { [(1001, 9.25), (1002, 9.25)] } else { optimized });
        drop(query);
        assert!(context.wait_until_prepared(Duration::from_secs(300)));
        assert_eq!(found(), optimized);
        assert_eq!(context.counters().programs_optimized, if number == 1 { 2 } else { 0 });
    };
    runs(NAME, 2, &[], run, |_, _| ());
}
