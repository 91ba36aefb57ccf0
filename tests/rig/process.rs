//! A program that runs until its owner is dropped.

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a root").to_owned()
}

/// A program that runs.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a command; what it prints is appended to `log`.
    pub fn start(command: &[String], log: &Path) -> Result<Self> {
        let [program, arguments @ ..] = command else { anyhow::bail!("no command") };
        let out = File::options().create(true).append(true).open(log)?;
        let child = Command::new(program)
            .args(arguments)
            .current_dir(repository())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        Ok(Self(child))
    }

    fn signal(&self, signal: Signal) {
        if let Ok(id) = i32::try_from(self.0.id()) {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(id), signal);
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Ends it at once, without warning.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.0.wait();
    }

    /// Stops it where it stands: connections stay open and nothing is answered.
    pub fn hang(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Goes on after [`Process::hang`].
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.go_on();
        self.signal(Signal::SIGTERM);
        for _ in 0..60 {
            if !self.runs() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.kill();
    }
}
