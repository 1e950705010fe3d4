// SPDX-License-Identifier: Apache-2.0
//! The shell at a pseudoterminal, which `script` of util-linux provides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A shell at a terminal, with its output so far.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn open() -> Terminal {
        let selector = device::testing::config().unwrap().selector.to_string();
        // `exec` replaces the intermediate shell, which might end at an interrupt.
        let command = format!("exec '{}'", env!("CARGO_BIN_EXE_devicefusion"));
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("DATAFUSION_DEVICE_SELECTOR", selector)
            .env("HOME", env!("CARGO_TARGET_TMPDIR"))
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

    /// Leaves the shell, which succeeds.
    fn quit(mut self) {
        self.press("\\q\n");
        assert!(self.child.wait().unwrap().success());
    }

    fn press(&mut self, keys: &str) {
        let pressed = self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush());
        assert!(pressed.is_ok(), "{pressed:?} after:\n{}", self.screen.lock().unwrap());
    }

    fn shows(&self, output: &str, times: usize) -> bool {
        self.screen.lock().unwrap().matches(output).count() >= times
    }

    /// Waits until `output` appears `times` times. Presses `keys` every two seconds until then.
    fn wait_for(&mut self, output: &str, times: usize, keys: &str) {
        let start = Instant::now();
        while !self.shows(output, times) {
            assert!(start.elapsed() < Duration::from_secs(120), "no {output:?} in:\n{}", self.screen.lock().unwrap());
            std::thread::sleep(Duration::from_secs(2));
            if !self.shows(output, times) && !keys.is_empty() {
                self.press(keys);
            }
        }
    }
}

/// A driver starts linkers from its threads, and a linker inherits the thread's signal mask.
#[test]
fn only_one_thread_receives_ctrl_c() {
    let mut terminal = Terminal::open();
    terminal.wait_for("to quit", 1, "");
    terminal.press("CREATE TABLE device.t AS SELECT value AS x FROM generate_series(1, 100);\n");
    terminal.wait_for("Elapsed", 1, "");
    let script = terminal.child.id();
    let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
    let shell: u32 = children.trim().parse().unwrap();
    let receives = |status: &str| {
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        // The bit of signal 2, SIGINT.
        u64::from_str_radix(blocked.trim(), 16).unwrap() & 0b10 == 0
    };
    let threads = std::fs::read_dir(format!("/proc/{shell}/task")).unwrap();
    let threads = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap());
    let receiving: Vec<String> = threads.filter(|status| receives(status)).collect();
    let names: Vec<&str> = receiving.iter().filter_map(|status| status.lines().next()).collect();
    assert_eq!(names, ["Name:\tinterrupts"]);
    terminal.quit();
}

#[test]
fn ctrl_c_ends_a_query_and_not_the_shell() {
    let mut terminal = Terminal::open();
    terminal.wait_for("to quit", 1, "");
    terminal.press("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 300000);\n");
    terminal.wait_for("Elapsed", 1, "");
    terminal.press("SELECT count(*) FROM t a JOIN t b ON a.x % 3 < b.x % 5 JOIN t c ON c.x < a.x + b.x;\n");
    // The line about its progress.
    terminal.wait_for(" s · ", 1, "");
    terminal.wait_for("^C", 1, "\x03");
    terminal.press("SELECT 40 + 2 AS answer;\n");
    terminal.wait_for("| 42     |", 1, "");
    terminal.quit();
}

#[test]
fn a_table_that_is_made_has_a_progress_line() {
    let mut terminal = Terminal::open();
    terminal.wait_for("to quit", 1, "");
    terminal.press("CREATE TABLE device.t AS SELECT value, md5(value::varchar) AS m FROM generate_series(1, 100000000);\n");
    terminal.wait_for(" rows · device ", 1, "");
    terminal.wait_for("^C", 1, "\x03");
    terminal.press("SELECT count(*) AS tables FROM information_schema.tables WHERE table_name = 't';\n");
    terminal.wait_for("| 0      |", 1, "");
    terminal.quit();
}

/// Lines that are typed while a statement runs are read one after another.
#[test]
fn lines_typed_ahead_all_run() {
    let mut terminal = Terminal::open();
    terminal.wait_for("to quit", 1, "");
    terminal.press("SELECT 'one' || 1 AS a;\rSELECT 'two' || 2 AS a;\rSELECT 'three' || 3 AS a;\r");
    for answer in ["| one1 ", "| two2 ", "| three3 "] {
        terminal.wait_for(answer, 1, "");
    }
    // Rows of a format for programs stop between batches.
    terminal.press("\\pset format csv\nSELECT value FROM generate_series(1, 100000000000);\n");
    terminal.wait_for("1000", 1, "");
    terminal.wait_for("^C", 1, "\x03");
    terminal.press("SELECT 40 + 2;\n");
    terminal.wait_for("\n42", 1, "");
    terminal.quit();
}

#[test]
fn tab_completes_words_and_exit_leaves() {
    let mut terminal = Terminal::open();
    terminal.wait_for("to quit", 1, "");
    terminal.press("CREATE TABLE lineitems AS SELECT 1 AS l_number;\n");
    terminal.wait_for("Elapsed", 1, "");
    terminal.press("SELE\t l_num\t FROM linei\t;\n");
    terminal.wait_for("| l_number |", 1, "");
    // Keys before the prompt may be lost.
    terminal.wait_for("to quit", 3, "");
    terminal.press("\\pset maxrows 2\n");
    terminal.wait_for("to quit", 4, "");
    terminal.press("SELECT * FROM generate_series(1, 9);\n");
    terminal.wait_for("First 2 displayed", 1, "");
    terminal.wait_for("to quit", 5, "");
    terminal.press("help\n");
    terminal.wait_for("leave the shell", 1, "");
    terminal.wait_for("to quit", 6, "");
    // A semicolon in a comment ends nothing.
    terminal.press("SELECT 40 + 2 AS answer -- not yet;\n;\n");
    terminal.wait_for("| 42     |", 1, "");
    terminal.wait_for("to quit", 7, "");
    terminal.press("\n");
    terminal.wait_for("to quit", 8, "");
    terminal.press("exit;\n");
    assert!(terminal.child.wait().unwrap().success());
}
