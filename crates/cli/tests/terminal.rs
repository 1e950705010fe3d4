// SPDX-License-Identifier: Apache-2.0
//! The shell at a pseudoterminal, which `script` of util-linux provides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two looks at the screen.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time between two presses of the same keys.
const REPETITION: Duration = Duration::from_secs(2);

/// The longest wait for output. Tests at the same time, and compilations, slow the shell down.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A shell at a terminal, with its output so far.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn open() -> Terminal {
        Terminal::open_at(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// A shell of a user whose folders are in `home`.
    fn open_at(home: &Path) -> Terminal {
        Terminal::open_after("", home)
    }

    /// A shell that starts at its terminal after commands of the system's shell.
    fn open_after(commands: &str, home: &Path) -> Terminal {
        let selector = device::testing::config().unwrap().selector.to_string();
        // `exec` replaces the intermediate shell, which might end at an interrupt.
        let command = format!("{commands} exec '{}'", env!("CARGO_BIN_EXE_devicefusion"));
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("DATAFUSION_DEVICE_SELECTOR", selector)
            .env("HOME", home)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_STATE_HOME")
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let writes = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                writes.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Terminal { child, keys, screen }
    }

    fn quit(self) {
        self.leave("\\q\n");
    }

    /// Leaves the shell, which succeeds.
    fn leave(mut self, keys: &str) {
        self.press(keys);
        assert!(self.child.wait().unwrap().success());
    }

    fn press(&mut self, keys: &str) {
        let pressed = self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush());
        assert!(pressed.is_ok(), "{pressed:?} after:\n{}", self.screen.lock().unwrap());
    }

    /// How often the output has appeared.
    fn count(&self, output: &str) -> usize {
        self.screen.lock().unwrap().matches(output).count()
    }

    /// Waits until `output` appears `times` times. Presses `keys` every two seconds until then.
    fn wait_for(&mut self, output: &str, times: usize, keys: &str) {
        let start = Instant::now();
        let mut pressed = start;
        while self.count(output) < times {
            assert!(start.elapsed() < LONGEST_WAIT, "no {output:?} in:\n{}", self.screen.lock().unwrap());
            if !keys.is_empty() && pressed.elapsed() >= REPETITION {
                self.press(keys);
                pressed = Instant::now();
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Waits for a prompt, by its number. Keys before it may be lost.
    fn wait_for_prompt(&mut self, number: usize) {
        self.wait_for("to quit", number, "");
    }

    /// The status of each thread of the shell.
    fn threads(&self) -> Vec<String> {
        let script = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
        let shell: u32 = children.trim().parse().unwrap();
        let threads = std::fs::read_dir(format!("/proc/{shell}/task")).unwrap();
        // A thread may end meanwhile.
        threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok()).collect()
    }

    /// Waits for programs that are optimized in the background, as the end of the shell does.
    fn wait_for_background(&self) {
        let start = Instant::now();
        while self.threads().iter().any(|status| status.starts_with("Name:\tdevice-backgrou")) {
            assert!(start.elapsed() < LONGEST_WAIT, "programs are still optimized");
            std::thread::sleep(INTERVAL);
        }
    }
}

/// A failed test leaves no shell that runs on.
impl Drop for Terminal {
    fn drop(&mut self) {
        _ = self.child.kill();
    }
}

/// A driver starts linkers from its threads, and a linker inherits the thread's signal mask.
#[test]
fn only_one_thread_receives_ctrl_c() {
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    terminal.press("CREATE TABLE device.t AS SELECT value AS x FROM generate_series(1, 100);\n");
    terminal.wait_for_prompt(2);
    let receives = |status: &str| {
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        // The bit of signal 2, SIGINT.
        u64::from_str_radix(blocked.trim(), 16).unwrap() & 0b10 == 0
    };
    let threads = terminal.threads();
    let receiving = threads.iter().filter(|status| receives(status));
    let names: Vec<&str> = receiving.filter_map(|status| status.lines().next()).collect();
    assert_eq!(names, ["Name:\tinterrupts"]);
    terminal.quit();
}

/// The join compares pairs of strings, which takes long for each pair.
#[test]
fn ctrl_c_ends_a_query_and_not_the_shell() {
    const SOON: Duration = Duration::from_secs(2);
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    let text = "'the same forty characters of each text: ' || value::varchar AS s";
    let create = format!("CREATE TABLE t AS SELECT value AS x, 1 AS one, {text} FROM generate_series(1, 300000);");
    // A first run would be the host's otherwise.
    terminal.press(&format!("SET device.cost = 'always'; {create}\n"));
    terminal.wait_for_prompt(2);
    let pairs = "SELECT count(*) AS pairs FROM t a JOIN other b ON a.one = b.one \
                 WHERE a.s || 'z' < b.s AND a.x * b.x < 0;\n";
    // Compiles the kernels.
    terminal.press(&pairs.replace("other", "(SELECT * FROM t LIMIT 3)"));
    terminal.wait_for("| 0     |", 1, "");
    terminal.wait_for_prompt(3);
    terminal.wait_for_background();
    let lines = terminal.count(" · device ");
    terminal.press(&pairs.replace("other", "t"));
    // The line about its progress comes after a second, and changes five times in each.
    terminal.wait_for(" · device ", lines + 5, "");
    let interrupted = Instant::now();
    terminal.press("\x03");
    terminal.wait_for("^C", 1, "");
    terminal.wait_for_prompt(4);
    terminal.press("SELECT 40 + 2 AS answer;\n");
    terminal.wait_for("| 42     |", 1, "");
    let answered = interrupted.elapsed();
    terminal.wait_for_prompt(5);
    let left = Instant::now();
    terminal.quit();
    let ended = left.elapsed();
    assert!(answered < SOON && ended < SOON, "{answered:?} to the answer, {ended:?} to the end");
}

#[test]
fn a_table_that_is_made_has_a_progress_line() {
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    terminal.press("CREATE TABLE device.t AS SELECT value, md5(value::varchar) AS m FROM generate_series(1, 100000000);\n");
    terminal.wait_for(" rows · device ", 1, "");
    terminal.wait_for("^C", 1, "\x03");
    terminal.wait_for_prompt(2);
    terminal.press("SELECT count(*) AS tables FROM information_schema.tables WHERE table_name = 't';\n");
    terminal.wait_for("| 0      |", 1, "");
    terminal.wait_for_prompt(3);
    terminal.quit();
}

#[test]
fn a_query_of_the_host_shows_its_memory() {
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    terminal.press("SET device.selector = 'none';\n");
    terminal.wait_for_prompt(2);
    terminal.press("SELECT count(DISTINCT value) FROM generate_series(1, 1000000000);\n");
    terminal.wait_for(" · host ", 1, "");
    terminal.press("\x03");
    terminal.wait_for_prompt(3);
    terminal.quit();
}

#[test]
fn a_summary_has_a_progress_line() {
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    // Texts have no quantiles, for which all values would be kept.
    terminal.press("SUMMARIZE (SELECT 'a' || value AS s FROM generate_series(1, 1000000000));\n");
    terminal.wait_for(" s · ", 1, "");
    terminal.wait_for("^C", 1, "\x03");
    terminal.wait_for_prompt(2);
    terminal.quit();
}

#[test]
fn wide_rows_are_cut_to_the_terminal() {
    let mut terminal = Terminal::open_after("stty rows 40 cols 60;", Path::new(env!("CARGO_TARGET_TMPDIR")));
    terminal.wait_for_prompt(1);
    terminal.press("SELECT repeat('abcdefghij', 30) AS long, 7 AS id;\n");
    terminal.wait_for("Long values are cut", 1, "");
    terminal.wait_for_prompt(2);
    let screen = terminal.screen.lock().unwrap().clone();
    let lines: Vec<_> = screen.lines().map(str::trim_end).filter(|line| line.starts_with(['|', '+'])).collect();
    assert!(lines.len() == 5 && lines.iter().all(|line| line.chars().count() <= 60), "{screen}");
    assert!(lines[3].contains('…') && lines[3].contains("| 7 "), "{screen}");
    terminal.quit();
}

/// Lines typed while a statement runs are read one after another.
#[test]
fn lines_typed_ahead_all_run() {
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    terminal.press("SELECT 'one' || 1 AS a;\rSELECT 'two' || 2 AS a;\rSELECT 'three' || 3 AS a;\r");
    for answer in ["| one1 ", "| two2 ", "| three3 "] {
        terminal.wait_for(answer, 1, "");
    }
    terminal.wait_for_prompt(4);
    // Rows of a format for programs stop between batches.
    terminal.press("\\pset format csv\nSELECT value FROM generate_series(1, 100000000000);\n");
    terminal.wait_for("\n1000", 1, "");
    terminal.wait_for("^C", 1, "\x03");
    terminal.wait_for_prompt(6);
    terminal.press("SELECT 40 + 2 AS answer;\n");
    terminal.wait_for("answer\r\n42", 1, "");
    terminal.wait_for_prompt(7);
    terminal.quit();
}

#[test]
fn tab_completes_names_and_exit_leaves() {
    let mut terminal = Terminal::open();
    terminal.wait_for_prompt(1);
    terminal.press("CREATE TABLE lineitems AS SELECT 1 AS l_number;\n");
    terminal.wait_for_prompt(2);
    terminal.press("SELE\t l_num\t FROM linei\t;\n");
    terminal.wait_for("| l_number |", 1, "");
    terminal.wait_for_prompt(3);
    terminal.press("\\pset maxrows 2\n");
    terminal.wait_for_prompt(4);
    terminal.press("SELECT * FROM generate_series(1, 9);\n");
    terminal.wait_for("First 2 displayed", 1, "");
    terminal.wait_for_prompt(5);
    terminal.press("help\n");
    terminal.wait_for("leave the shell", 1, "");
    terminal.wait_for_prompt(6);
    // A semicolon in a comment ends nothing.
    terminal.press("SELECT 40 + 2 AS answer -- not yet;\n;\n");
    terminal.wait_for("| 42     |", 1, "");
    terminal.wait_for_prompt(7);
    terminal.press("\n");
    terminal.wait_for_prompt(8);
    terminal.leave("exit;\n");
}

#[test]
fn the_folders_of_a_user_have_the_startup_file_and_the_history() {
    let home = tempfile::tempdir().unwrap();
    let settings = home.path().join(".config/devicefusion");
    std::fs::create_dir_all(&settings).unwrap();
    std::fs::write(settings.join("rc.sql"), "CREATE VIEW v AS SELECT 42 AS answer;\n").unwrap();
    let mut terminal = Terminal::open_at(home.path());
    terminal.wait_for_prompt(1);
    terminal.press("SELECT answer FROM v;\n");
    terminal.wait_for("| 42     |", 1, "");
    terminal.wait_for_prompt(2);
    terminal.leave("quit\n");
    let history = std::fs::read_to_string(home.path().join(".local/state/devicefusion/history")).unwrap();
    // The first line is the version of the file.
    assert_eq!(history.lines().skip(1).collect::<Vec<_>>(), ["SELECT answer FROM v;", "quit"]);
}
