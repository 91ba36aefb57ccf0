//! A started process: pinned to one core, ended when dropped, and asked for its CPU time.
//!
//! Each leads a process group of its own, so that what it starts is counted with it and ended with it, and so that
//! a Ctrl-C reaches only the benchmark, which then ends all in order. CPU time is read from the kernel's CPU clock
//! of each process: it is the utime + stime of `/proc/PID/stat`, without their rounding to ticks of 10 ms, which
//! is a tenth of what a fast proxy spends in one measurement.

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The core of the proxies, and of everything that works for one.
pub(crate) const PROXY_CORE: &str = "0";
/// The core of the client and the backends.
pub(crate) const LOAD_CORE: &str = "1";
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// From SIGKILL, which nothing can ignore but which takes effect in its own time, to giving up.
const LAST: Duration = Duration::from_secs(1);

pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` (a program and its arguments) on `core`; what it prints goes to a file in `logs`.
    ///
    /// It must be called from a thread that lives as long as the run: see trap 1 of the field notes on Envoy.
    pub(crate) fn start<S: AsRef<OsStr>>(name: &str, core: &str, command: &[S], logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let out = File::create(&log)?;
        let child = Command::new("taskset")
            .args(["-c", core])
            .args(command)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {name} under taskset"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// The CPU time spent so far by the process and all that it started.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.check()?;
        let mut sum = Duration::ZERO;
        for member in self.members() {
            // Between the listing and this a short-lived one may have ended.
            if let Ok(clock) = clock_getcpuclockid(member) {
                sum += Duration::from(clock_gettime(clock)?);
            }
        }
        Ok(sum)
    }

    /// An error with the end of its log when the process has ended. It is not reaped: see `drop`.
    pub(crate) fn check(&self) -> Result<()> {
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.group()), ended)?;
        if status == WaitStatus::StillAlive {
            return Ok(());
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(20)..).unwrap_or_default();
        bail!("{} ended by itself ({status:?}):\n{}", self.name, last.join("\n"))
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The living processes of the group.
    fn members(&self) -> Vec<Pid> {
        let group = self.group();
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|id: &i32| alive_in(*id, group).unwrap_or(false))
            .map(Pid::from_raw)
            .collect()
    }
}

impl Drop for Process {
    /// The child is reaped last: until then its id, and so the group's, cannot be another's.
    fn drop(&mut self) {
        for (signal, patience) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, LAST)] {
            if killpg(self.group(), signal) == Err(Errno::ESRCH) {
                break;
            }
            let deadline = Instant::now() + patience;
            while !self.members().is_empty() && Instant::now() < deadline {
                sleep(Duration::from_millis(20));
            }
        }
        let _ = self.child.wait();
    }
}

/// Whether `/proc/ID/stat` shows a process of this group that is no zombie. The second field is a name in brackets
/// and may contain anything, so fields are counted from its end: state, parent, group.
fn alive_in(id: i32, group: Pid) -> Option<bool> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let of: i32 = fields.nth(1)?.parse().ok()?;
    Some(of == group.as_raw() && !matches!(state, "Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_counted_whole_and_nothing_of_it_survives_the_guard() {
        let logs = std::env::temp_dir();
        let name = format!("weir-bench-test-{}", std::process::id());
        // A child that burns CPU and ignores the polite signal, under a parent that only waits.
        let script = "sh -c 'trap \"\" TERM; while :; do :; done' & wait";
        let process = Process::start(&name, PROXY_CORE, &["sh", "-c", script], &logs).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while process.cpu().unwrap() < Duration::from_millis(100) {
            assert!(Instant::now() < deadline, "the child's CPU time is not counted");
            sleep(Duration::from_millis(20));
        }
        let members = process.members();
        assert_eq!(members.len(), 2);
        let (group, log) = (process.group(), process.log.clone());
        drop(process);
        assert!(members.iter().all(|id| !alive_in(id.as_raw(), group).unwrap_or(false)));
        fs::remove_file(log).unwrap();
    }
}
