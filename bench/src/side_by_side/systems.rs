//! The systems under test: what each is made of, and how it is started.
//!
//! Every Envoy here, Weir's too, is a complete configuration file with placeholders for its ports, so a system is
//! a file and perhaps one process beside it; that one's CPU time is part of the system's. All ports are chosen
//! before anything starts, by binding port 0.

use super::load;
use super::process::{LOAD_CORE, PROXY_CORE, Process};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The system that all others are compared with.
pub(crate) const BASE: &str = "envoy";
const PATIENCE: Duration = Duration::from_secs(60);

/// What can be started.
pub(crate) struct Plan {
    pub(crate) envoy: PathBuf,
    /// Envoys by their names, each with its configuration.
    pub(crate) systems: Vec<(String, PathBuf)>,
    /// The same, each with a scorer of its own.
    pub(crate) weir_scorer: Vec<(String, PathBuf)>,
    pub(crate) weir_picker: Option<PathBuf>,
    pub(crate) scorer_command: Option<String>,
    /// The Python that has sglang-router.
    pub(crate) sglang: Option<PathBuf>,
    pub(crate) ext_proc: bool,
}

pub(crate) struct System {
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Must listen too before the system counts as ready: a chain without its scorer would still answer.
    beside: Option<u16>,
    /// Killed when dropped.
    processes: Vec<Process>,
}

impl System {
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.processes.iter().map(Process::cpu).sum()
    }

    /// Returns once the system answers a request.
    async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for process in &self.processes {
                process.check()?;
            }
            match self.probe().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error.context(format!("{} does not serve after {PATIENCE:?}", self.name)));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    async fn probe(&self) -> Result<()> {
        if let Some(port) = self.beside {
            TcpStream::connect(("127.0.0.1", port)).await.context("its helper does not listen")?;
        }
        load::probe(self.port).await
    }
}

/// This program, even if its file was replaced meanwhile.
pub(crate) fn this_program() -> OsString {
    format!("/proc/{}/exe", std::process::id()).into()
}

/// Starts everything and waits until all of it serves. The backends come as a system too, of no interest by itself.
pub(crate) async fn start(plan: &Plan, scratch: &Path) -> Result<(System, Vec<System>)> {
    let mut launch = Launch { plan, scratch, ports: free_ports(64)?, backends: [0, 0] };
    let backends = launch.backends()?;
    backends.ready().await?;
    let mut systems = vec![launch.envoy(BASE, include_str!("envoy/envoy.yaml"), None)?];
    for (name, file) in &plan.systems {
        systems.push(launch.envoy(name, &read(file)?, None)?);
    }
    for (name, file) in plan.weir_scorer.iter().filter(|_| plan.scorer_command.is_some()) {
        systems.push(launch.envoy(name, &read(file)?, plan.scorer_command.as_deref())?);
    }
    if let (Some(file), Some(command)) = (&plan.weir_picker, &plan.scorer_command) {
        systems.push(launch.envoy("scorer as ext_proc", &read(file)?, Some(command))?);
    }
    if plan.ext_proc {
        systems.push(launch.ext_proc()?);
    }
    if let Some(python) = &plan.sglang {
        systems.push(launch.sglang(python)?);
    }
    for system in &systems {
        system.ready().await?;
    }
    Ok((backends, systems))
}

struct Launch<'a> {
    plan: &'a Plan,
    scratch: &'a Path,
    ports: Vec<u16>,
    backends: [u16; 2],
}

impl Launch<'_> {
    fn port(&mut self) -> Result<u16> {
        self.ports.pop().context("out of ports")
    }

    fn run(&self, name: &str, core: &str, command: &[&OsStr]) -> Result<Process> {
        Process::start(name, core, command, self.scratch)
    }

    fn backends(&mut self) -> Result<System> {
        self.backends = [self.port()?, self.port()?];
        let program = this_program();
        let mut processes = Vec::new();
        for port in self.backends {
            let (name, port) = (format!("backend-{port}"), port.to_string());
            let command = [program.as_os_str(), "backend".as_ref(), "--port".as_ref(), port.as_ref()];
            processes.push(self.run(&name, LOAD_CORE, &command)?);
        }
        Ok(System {
            name: "backends".into(),
            port: self.backends[0],
            beside: Some(self.backends[1]),
            processes,
        })
    }

    /// An Envoy from a template, with a scorer beside it when there is a command for one.
    fn envoy(&mut self, name: &str, template: &str, scorer: Option<&str>) -> Result<System> {
        let (port, beside, picker) = (self.port()?, self.port()?, self.port()?);
        let beside_it = [("SCORER_PORT", beside), ("PICKER_PORT", picker)];
        let mut processes = Vec::new();
        if let Some(command) = scorer {
            let command = format!("exec {}", self.fill(command, &beside_it)?);
            let command = ["sh".as_ref(), "-c".as_ref(), command.as_ref()];
            processes.push(self.run("scorer", PROXY_CORE, &command)?);
        }
        processes.push(self.envoy_process(name, template, &[&beside_it[..], &[("PORT", port)]].concat())?);
        Ok(System { name: name.to_owned(), port, beside: scorer.map(|_| beside), processes })
    }

    fn ext_proc(&mut self) -> Result<System> {
        let (port, beside) = (self.port()?, self.port()?);
        let (program, argument) = (this_program(), beside.to_string());
        let command = [program.as_os_str(), "ext-proc".as_ref(), "--port".as_ref(), argument.as_ref()];
        let server = self.run("ext_proc-server", PROXY_CORE, &command)?;
        let template = include_str!("envoy/ext_proc.yaml");
        let envoy = self.envoy_process("ext_proc", template, &[("PORT", port), ("EXT_PROC_PORT", beside)])?;
        Ok(System { name: "ext_proc buf".into(), port, beside: Some(beside), processes: vec![server, envoy] })
    }

    fn sglang(&mut self, python: &Path) -> Result<System> {
        let (port, metrics) = (self.port()?, self.port()?);
        let command = format!(
            "-m sglang_router.launch_router --host 127.0.0.1 --port {port} --worker-urls http://127.0.0.1:{} \
             http://127.0.0.1:{} --policy cache_aware --prometheus-host 127.0.0.1 --prometheus-port {metrics} \
             --log-level warn",
            self.backends[0], self.backends[1]
        );
        let words = command.split_whitespace().map(OsStr::new);
        let command: Vec<&OsStr> = std::iter::once(python.as_os_str()).chain(words).collect();
        let process = self.run("sglang-router", PROXY_CORE, &command)?;
        Ok(System { name: "sglang-router cache_aware".into(), port, beside: None, processes: vec![process] })
    }

    fn envoy_process(&mut self, name: &str, template: &str, ports: &[(&str, u16)]) -> Result<Process> {
        let admin = self.port()?;
        let ports = [ports, &[("ADMIN_PORT", admin)]].concat();
        let config = self.scratch.join(format!("{name}.yaml"));
        fs::write(&config, self.fill(template, &ports).context(name.to_owned())?)?;
        let options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warn", "-c"];
        let mut command = vec![self.plan.envoy.as_os_str()];
        command.extend(options.iter().map(OsStr::new));
        command.push(config.as_os_str());
        self.run(name, PROXY_CORE, &command)
    }

    fn fill(&self, template: &str, ports: &[(&str, u16)]) -> Result<String> {
        let [first, second] = self.backends;
        fill(template, &[ports, &[("BACKEND_1", first), ("BACKEND_2", second)]].concat())
    }
}

/// Replaces `{{NAME}}` by the port of that name; a placeholder left over is an error.
fn fill(template: &str, ports: &[(&str, u16)]) -> Result<String> {
    let mut filled = template.to_owned();
    for (name, port) in ports {
        filled = filled.replace(&format!("{{{{{name}}}}}"), &port.to_string());
    }
    for rest in filled.split("{{").skip(1) {
        if rest.starts_with(|first: char| first.is_ascii_uppercase()) {
            let name = rest.split("}}").next().unwrap_or_default();
            let known: Vec<&str> = ports.iter().map(|(name, _)| *name).collect();
            bail!("placeholder {{{{{name}}}}}: unknown here; expected one of {}", known.join(", "));
        }
    }
    Ok(filled)
}

/// Ports that nobody uses: all are held until the last is found, so that no two are the same.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let held = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect::<Result<Vec<_>, _>>()?;
    Ok(held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<std::io::Result<_>>()?)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_and_unknown_ones_refused() {
        let ports = [("PORT", 1), ("BACKEND_1", 2)];
        assert_eq!(fill("a {{PORT}} {{BACKEND_1}}:{{PORT}} {{lower}}", &ports).unwrap(), "a 1 2:1 {{lower}}");
        let error = fill("{{SCORER_PORT}}", &ports).unwrap_err().to_string();
        assert_eq!(error, "placeholder {{SCORER_PORT}}: unknown here; expected one of PORT, BACKEND_1");
    }
}
