//! What the machine provides: its description, and peers installed beside the repository.
//!
//! Peers go into a cache folder under `${XDG_CACHE_HOME:-$HOME/.cache}`, one virtual environment each, so that a
//! second run starts at once and nothing of theirs enters the repository or the system.

use anyhow::{Context, Result, ensure};
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tokio::process::Command;

pub(crate) const SGLANG_ROUTER: &str = "0.3.2";
const TRIES: u32 = 3;

/// The Python of a virtual environment with sglang-router, installed if it is missing.
pub(crate) async fn sglang_router() -> Result<PathBuf> {
    let folder = cache()?.join(format!("sglang-router-{SGLANG_ROUTER}"));
    let python = folder.join("bin/python");
    let check = ["-c", "import sglang_router.launch_router"];
    for attempt in 1..=TRIES {
        if python.exists() && output(&python, &check).await.is_ok() {
            return Ok(python);
        }
        eprintln!("installing sglang-router {SGLANG_ROUTER} into {} (try {attempt})", folder.display());
        if let Err(error) = install(&folder, &python).await {
            eprintln!("{error:#}");
        }
    }
    output(&python, &check)
        .await
        .context("sglang-router cannot be installed; --without-sglang leaves it out")?;
    Ok(python)
}

async fn install(folder: &Path, python: &Path) -> Result<()> {
    let package = format!("sglang-router=={SGLANG_ROUTER}");
    if output("uv", &["--version"]).await.is_ok() {
        output("uv", &["venv".as_ref(), "--allow-existing".as_ref(), folder.as_os_str()]).await?;
        let words = ["pip", "install", "--python"].map(OsStr::new);
        output("uv", &[&words[..], &[python.as_os_str(), package.as_ref()]].concat()).await?;
    } else {
        output("python3", &["-m".as_ref(), "venv".as_ref(), folder.as_os_str()]).await?;
        output(python, &["-m", "pip", "install", "--quiet", &package]).await?;
    }
    Ok(())
}

fn cache() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("weir/bench-peers"))
}

/// The line under a table that lets somebody else repeat it.
pub(crate) async fn description(envoy: Option<&Path>, with_sglang: bool) -> Result<String> {
    let date = output("date", &["-u", "+%Y-%m-%d"]).await?;
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    let cores = std::thread::available_parallelism()?;
    ensure!(cores.get() >= 2, "one core for the proxies and one for the load are needed");
    let envoy = match envoy {
        // "PATH  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL"
        Some(envoy) => {
            let said = output(envoy, &["--version"]).await?;
            let version = said.split("version: ").nth(1).and_then(|version| version.split('/').nth(1));
            format!("Envoy {}, ", version.unwrap_or("unknown"))
        }
        None => String::new(),
    };
    let sglang = if with_sglang { format!(", sglang-router {SGLANG_ROUTER}") } else { String::new() };
    Ok(format!(
        "{date}; {}, {cores} cores; {envoy}weir {}{sglang}; `{}`",
        model.unwrap_or("unknown CPU"),
        env!("CARGO_PKG_VERSION"),
        command_line(env::args())
    ))
}

/// The command as it was typed, but for the folders of absolute paths, which mean nothing elsewhere.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let shown = arguments.map(|argument| {
        let words: Vec<String> = argument.split(' ').map(without_folder).collect();
        if words.len() > 1 { format!("'{}'", words.join(" ")) } else { words.concat() }
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn without_folder(word: &str) -> String {
    let (option, value) = word.split_once('=').map_or(("", word), |(option, value)| (option, value));
    let equals = if option.is_empty() { "" } else { "=" };
    match value.strip_prefix('/').and_then(|path| path.rsplit('/').next()) {
        Some(name) => format!("{option}{equals}{name}"),
        None => word.to_owned(),
    }
}

async fn output(program: impl AsRef<OsStr>, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
    let name = program.as_ref().display().to_string();
    let output =
        Command::new(program).args(arguments).kill_on_drop(true).output().await.context(name.clone())?;
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{name}: {}: {}", output.status, error.trim());
    Ok(out.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_shows_no_folder_of_this_machine() {
        let typed = [
            "/a/b/weir-bench",
            "--envoy",
            "/opt/envoy",
            "--out=/x/R.md",
            "bench/R.md",
            "/a/weir --port {{P}} /c/d",
        ];
        assert_eq!(
            command_line(typed.iter().map(|&word| word.to_owned())),
            "weir-bench --envoy envoy --out=R.md bench/R.md 'weir --port {{P}} d'"
        );
    }
}
