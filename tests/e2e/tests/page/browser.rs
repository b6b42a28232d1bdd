//! Chromium without a window, driven through its debugging pipe (the Chrome DevTools Protocol).

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use provost_e2e::driver::WAIT_MAX;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// The program, as Debian calls it.
const PROGRAM: &str = "chromium";
/// What a browser has told and nobody has read, at most; then it waits.
const TOLD_MAX: usize = 4096;
/// Between two looks at a document.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A browser with one document. It ends with the test: its pipe is closed then.
pub(crate) struct HeadlessBrowser {
    process: Child,
    commands: File,
    answers: Receiver<Value>,
    next: Cell<u64>,
    session: String,
    /// What has happened meanwhile.
    events: Vec<Value>,
    _folder: tempfile::TempDir,
}

/// Whether there is no browser. Says so when there is none.
pub(crate) fn is_missing() -> bool {
    let missing = Command::new(PROGRAM).arg("--version").output().is_err();
    if missing {
        provost_skip::missing(PROGRAM, "Debian package chromium");
    }
    missing
}

impl HeadlessBrowser {
    /// Starts one that shows nothing yet.
    pub(crate) fn start() -> HeadlessBrowser {
        let folder = tempfile::Builder::new().prefix("pbrowser-").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["commands", "answers"] {
            mknodat(CWD, at(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        // Only a shell can give a program descriptors 3 and 4 without unsafe code.
        let script = "exec \"$@\" 3<commands 4>answers";
        let process = Command::new("bash")
            .args(["-c", script, "bash", PROGRAM])
            .args([
                "--headless",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--remote-debugging-pipe",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            // The test may run as root, and in a container: there is no sandbox then, and nothing from elsewhere to lock in.
            .args(["--no-sandbox", "--disable-dev-shm-usage"])
            .arg(format!("--user-data-dir={}", at("profile").display()))
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(at("log")).unwrap())
            .spawn()
            .unwrap();
        let commands = File::options().write(true).open(at("commands")).unwrap();
        let answered = File::open(at("answers")).unwrap();
        let (sender, answers) = sync_channel(TOLD_MAX);
        std::thread::spawn(move || {
            let parts = BufReader::new(answered).split(0);
            for part in parts.map_while(Result::ok) {
                let Ok(told) = serde_json::from_slice(&part) else {
                    return;
                };
                if sender.send(told).is_err() {
                    return;
                }
            }
        });
        let mut browser = HeadlessBrowser {
            process,
            commands,
            answers,
            next: Cell::new(1),
            session: String::new(),
            events: Vec::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser.call("Network.enable", json!({}));
        browser.call("Page.enable", json!({}));
        browser.call("Runtime.enable", json!({}));
        browser
    }

    /// Opens the page of a node at a port, with its token.
    pub(crate) fn open(&mut self, page: SocketAddr, token: &str) {
        let url = format!("http://{page}/#token={token}");
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Gives a command, and waits for what comes of it.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.next.replace(self.next.get() + 1);
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        let mut line = command.to_string().into_bytes();
        line.push(0);
        self.commands.write_all(&line).unwrap();
        loop {
            let told = self.answers.recv_timeout(WAIT_MAX);
            let told = told.unwrap_or_else(|error| panic!("{method}: {error}"));
            if told["id"] == id {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].clone();
            }
            self.events.push(told);
        }
    }

    /// The value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let told = self.call("Runtime.evaluate", asked);
        assert!(told["exceptionDetails"].is_null(), "{expression}: {told}");
        told["result"]["value"].clone()
    }

    pub(crate) fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let deadline = Instant::now() + WAIT_MAX;
        // A document that is still being loaded has not got all of it.
        let attempt = format!("(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()");
        while self.value(&attempt) != true {
            if Instant::now() > deadline {
                let shown = self.text("document.body.innerText");
                panic!("{expression} does not come true: {shown}");
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// The addresses that the document has asked, for whatever.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self
            .events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| {
            event["params"]["request"]["url"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
    }

    /// What the script has complained of.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let is_complaint = |event: &&Value| {
            let is_error = event["params"]["type"] == "error" || event["params"]["entry"]["level"] == "error";
            event["method"] == "Runtime.exceptionThrown" || is_error
        };
        self.events.iter().filter(is_complaint).collect()
    }

    /// Shows the document in light or dark colours.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// Shows the document in a window of this size.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Writes a picture of the document, from its top to the end of an element.
    pub(crate) fn picture(&mut self, last: &str, path: &Path) {
        let end = format!("document.querySelector({last:?}).getBoundingClientRect().bottom + scrollY + 24");
        let end = self.value(&end);
        let width = self.value("document.documentElement.clientWidth");
        let place = json!({ "x": 0, "y": 0, "width": width, "height": end, "scale": 1 });
        let asked = json!({ "format": "png", "captureBeyondViewport": true, "clip": place });
        let told = self.call("Page.captureScreenshot", asked);
        use base64::Engine;
        let picture = base64::engine::general_purpose::STANDARD.decode(told["data"].as_str().unwrap());
        std::fs::write(path, picture.unwrap()).unwrap();
    }
}

impl Drop for HeadlessBrowser {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.process.id() as i32) {
            // Its helpers too. It fails only when all are gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.wait();
    }
}
