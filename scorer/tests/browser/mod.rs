//! A browser without a window, told what to do over two pipes (the DevTools protocol, a NUL behind each message).

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// As long as a page may take to do anything.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    next: u64,
    session: String,
    _dir: TempDir,
}

/// Chromium, where there is one: `build.sh` installs it where it can.
fn binary() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|file| file.is_file())
}

impl Browser {
    /// A browser with one page, or none where no browser is installed.
    pub(crate) fn open(url: &str) -> Option<Self> {
        let binary = binary()?;
        let dir = tempfile::tempdir().unwrap();
        let (to, from) = (dir.path().join("to"), dir.path().join("from"));
        assert!(Command::new("mkfifo").args([&to, &from]).status().unwrap().success());
        let options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                       --disable-extensions --disable-background-networking --window-size=1500,940 \
                       --remote-debugging-pipe about:blank";
        let script = format!(
            r#"exec 3<"$1" 4>"$2"; shift 2; exec "$0" --user-data-dir="$1" --disk-cache-dir=/dev/null {options}"#
        );
        let profile = dir.path().join("profile");
        let child = Command::new("sh")
            .arg("-c")
            .arg(script)
            .args([&binary, &to, &from, &profile])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // In the order in which the script opens them: each waits for the other side.
        let (to, from) =
            (File::options().write(true).open(to).unwrap(), BufReader::new(File::open(from).unwrap()));
        let mut browser = Self { child, to, from, next: 0, session: String::new(), _dir: dir };
        let targets = browser.call("Target.getTargets", json!({}));
        let page = targets["targetInfos"].as_array().unwrap().iter().find(|info| info["type"] == "page");
        let id = page.unwrap()["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": id, "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        browser.call("Page.navigate", json!({ "url": url }));
        Some(browser)
    }

    /// One command and its answer; what else the browser says is let go.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            assert!(self.from.read_until(0, &mut bytes).unwrap() > 0, "the browser ended");
            let heard: Value = serde_json::from_slice(bytes.strip_suffix(b"\0").unwrap()).unwrap();
            if heard["id"] == self.next {
                assert!(heard["error"].is_null(), "{method}: {heard}");
                return heard["result"].clone();
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub(crate) fn wait(&mut self, expression: &str) {
        let start = Instant::now();
        while self.eval(expression) != true {
            if start.elapsed() > PATIENCE {
                let page = self.eval("document.body.innerText");
                panic!("not within {PATIENCE:?}: {expression}\n{page}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
