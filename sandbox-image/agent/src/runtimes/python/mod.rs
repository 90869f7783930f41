//! Python: a new interpreter for each program, or, where there is a fork server, a fork of one that has
//! loaded the data libraries.

mod errors;
mod prefork;
mod stack;
mod zygote;

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use nix::unistd::Pid;
use protocol::message::{Failure, RuntimeName, Start};

use super::{
    Outlook, RunError, Runtime,
    program::{Program, Source, Stdin},
};
use crate::{
    places::Places,
    processes::{self, Children},
};
use prefork::Prefork;

/// The interpreter, by the name under which the path finds it.
const INTERPRETER: &str = "python3";

/// The program's text, in scratch space.
const SCRIPT: &str = "main.py";

/// The user's own modules come from the data area, and from nowhere else: what an earlier run left
/// beside the script or in its home would stand for a library of its name.
const OPTIONS: [&str; 2] = ["-P", "-s"];

/// Where the interpreter finds what is the user's and what is ours.
#[derive(Debug, Clone)]
struct Layout {
    places: Places,
    /// The program's text, whose name tracebacks show.
    script: PathBuf,
    /// The fork server's program. Without it every run is a new interpreter.
    zygote: PathBuf,
}

impl Layout {
    /// The data area, and then what the image's maker wants.
    fn python_path(&self) -> OsString {
        let mut path = self.places.data.as_os_str().to_owned();
        if let Some(more) = std::env::var_os("PYTHONPATH").filter(|more| !more.is_empty()) {
            path.push(":");
            path.push(more);
        }
        path
    }

    /// Puts the code where the interpreter and its tracebacks find it.
    fn write_script(&self, code: &[u8]) -> io::Result<()> {
        let path = &self.script;
        let write = || {
            // An earlier run may have put anything there, a link too.
            let _ = fs::remove_file(path);
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(code)
        };
        // Scratch space outlives a run only as a courtesy. Too full for the next one, or with a folder
        // in its place, it is emptied.
        write().or_else(|_| {
            self.places.clear_scratch()?;
            write()
        })
    }

    /// Starts a new interpreter on the script.
    fn start_cold(&self, stdin: Stdin) -> io::Result<Program> {
        let mut command = Command::new(INTERPRETER);
        command
            .args(OPTIONS)
            .arg(&self.script)
            .env("PYTHONPATH", self.python_path())
            .current_dir(&self.places.data)
            .stdin(match stdin {
                Stdin::Pipe => Stdio::piped(),
                Stdin::Null => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let new_session = || {
            nix::unistd::setsid()?;
            Ok(())
        };
        #[expect(unsafe_code, reason = "between fork and exec only a system call is made")]
        unsafe {
            command.pre_exec(new_session);
        }
        let begun = Instant::now();
        let mut child = processes::with_no_signal_blocked(|| command.spawn())??;
        // If memory runs out, the kernel shall take what the user started and not the agent. From
        // outside, because the child of a process that is not dumpable cannot write its own.
        let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
        let piped = "was asked for";
        Ok(Program {
            pid: Pid::from_raw(child.id().cast_signed()),
            start: Start::Cold,
            begun,
            stdin: child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe))),
            stdout: child.stdout.take().expect(piped).into(),
            stderr: child.stderr.take().expect(piped).into(),
            channel: None,
            stack: None,
        })
    }
}

/// Programs in Python.
pub(super) struct Python {
    layout: Layout,
    prefork: Prefork,
}

impl Python {
    pub(super) fn new(places: &Places) -> Self {
        let layout = Layout {
            script: places.scratch.join(SCRIPT),
            zygote: places.runtimes.join("python/zygote.py"),
            places: places.clone(),
        };
        Self { prefork: Prefork::new(layout.clone()), layout }
    }
}

impl Runtime for Python {
    fn name(&self) -> RuntimeName {
        RuntimeName::PYTHON
    }

    fn start(&mut self, source: Source<'_>, children: &mut Children) -> Result<Program, RunError> {
        self.layout
            .write_script(source.code)
            .map_err(|error| Failure::io("the program's file", &error))?;
        if let Some(program) = self.prefork.start(source, children)? {
            return Ok(program);
        }
        let program = self.layout.start_cold(source.stdin);
        Ok(program.map_err(|error| Failure::io(INTERPRETER, &error))?)
    }

    fn missing_file(&self, stderr: &[u8]) -> Option<String> {
        errors::missing_file(&String::from_utf8_lossy(stderr))
    }

    fn hiding_files(&self, stderr: &[u8]) -> Vec<String> {
        let module = errors::wanting_module(&String::from_utf8_lossy(stderr));
        module.map_or_else(Vec::new, |name| {
            let path = name.replace('.', "/");
            vec![format!("{path}.py"), format!("{path}/__init__.py")]
        })
    }

    fn script_name(&self) -> &'static str {
        SCRIPT
    }

    fn configure(&mut self, preload: Option<&[String]>, children: &mut Children) {
        if let Some(preload) = preload {
            self.prefork.configure(preload, children);
        }
    }

    fn attend(&mut self, children: &mut Children) {
        self.prefork.attend(children);
    }

    fn outlook(&self) -> Option<Outlook> {
        self.prefork.outlook()
    }

    fn hibernate(&mut self, children: &mut Children) {
        self.prefork.hibernate(children);
    }

    fn prewarm(&mut self, children: &mut Children) {
        self.prefork.wake(children);
    }

    fn resume(&mut self, start: Start, children: &mut Children) {
        self.prefork.resume(start, children);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.prefork.fds().collect()
    }

    fn alarm(&self) -> Option<Instant> {
        self.prefork.alarm()
    }
}
