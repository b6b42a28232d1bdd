//! The pictures of the page in the documentation, and whether they still show the page of today.
//!
//! Beside the pictures stands a text: all that is read in them, with figures left out, and how it is drawn. It is written when they are
//! taken. Pictures themselves cannot be compared: figures and fonts differ from one day and machine to the next.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use provost_e2e::agent::Executor;
use provost_e2e::script::{Answer, Ask, StatusParts};
use provost_e2e::watched;

use crate::browser::{HeadlessBrowser, is_missing};
use crate::looks::{LookedAtPair, looked_at};
use crate::node_page::echo;

/// In the environment: the folder into which the pictures of the documentation are written.
const PICTURES: &str = "PROVOST_PICTURES";
/// The folder of the documentation that has them.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operators");
/// What is read in them.
const TEXT: &str = "page.txt";
/// The picture in each kind of colours.
const SCHEMES: [(&str, &str); 2] = [("light", "page.png"), ("dark", "page-dark.png")];

/// Calls of one app for as long as the page is looked at.
fn call_until(ended: &AtomicBool, agent: &mut provost_e2e::Agent, calls: usize, failures: usize) {
    while !ended.load(Ordering::Relaxed) {
        agent.succeeds(echo(calls));
        for _ in 0..failures {
            agent.fails(Ask::Fail(StatusParts {
                code: 5,
                ..StatusParts::default()
            }));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Ends the calls of [`call_until`] when it is dropped.
struct EndsCalls<'a>(&'a AtomicBool);

impl Drop for EndsCalls<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Shows a browser the node that the pictures show, under calls of three apps.
fn looked_at_under_calls(look: impl FnOnce(&mut HeadlessBrowser) + Send) {
    let LookedAtPair {
        mut setting,
        mut browser,
        _folder,
        ..
    } = looked_at("operate");
    let mut apps =
        ["shop", "till"].map(|name| setting.world.agent_named(&setting.a, name, Executor::TokioMulti));
    for app in &mut apps {
        assert_eq!(app.first_answer(), Answer::Ready);
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when something here fails.
        let _guard = EndsCalls(&ended);
        let [shop, till] = &mut apps;
        scope.spawn(|| call_until(&ended, shop, 60, 2));
        scope.spawn(|| call_until(&ended, till, 20, 0));
        let limit = ["policy", "attach", "--kind", "rate-limit", "--name", "limit-echo"];
        let rate = ["--service", "probe.Probe", "--set", "requests_per_second=5000"];
        setting.a.operate(&[&limit[..], &rate].concat());
        browser.resize(1180, 900);
        for (table, name) in [
            ("traffic", "shop"),
            ("traffic", "till"),
            ("datapaths", "till"),
            ("datapaths", "limit-echo"),
        ] {
            let text = format!("document.querySelector('#{table}-table').innerText");
            browser.wait_for(&format!("{text}.includes('{name}')"));
        }
        look(&mut browser);
    });
}

#[test]
#[ignore = "writes the pictures of the documentation: cargo xtask pictures"]
fn pictures_of_the_documentation() {
    let Some(folder) = std::env::var_os(PICTURES).map(PathBuf::from) else {
        return;
    };
    watched(move || {
        looked_at_under_calls(|browser| {
            // Long enough for the trends to be seen.
            std::thread::sleep(Duration::from_secs(16));
            browser.value("document.querySelector('#pause').click()");
            let mut text = read_in(browser);
            for (scheme, name) in SCHEMES {
                browser.prefer(scheme);
                browser.picture("#datapaths", &folder.join(name));
                text += &drawn_in(browser, scheme);
            }
            std::fs::write(folder.join(TEXT), text).unwrap();
        });
    });
}

#[test]
fn pictures_in_the_documentation_show_the_page_of_today() {
    if is_missing() {
        return;
    }
    watched(|| {
        looked_at_under_calls(|browser| {
            browser.value("document.querySelector('#pause').click()");
            let mut today = read_in(browser);
            for (scheme, name) in SCHEMES {
                browser.prefer(scheme);
                today += &drawn_in(browser, scheme);
                assert!(Path::new(FOLDER).join(name).exists(), "{name}");
            }
            let pictured = std::fs::read_to_string(Path::new(FOLDER).join(TEXT)).unwrap();
            let (pictured, today) = (lines_of(&pictured), lines_of(&today));
            let gone: Vec<_> = pictured.difference(&today).collect();
            let new: Vec<_> = today.difference(&pictured).collect();
            assert!(
                gone.is_empty() && new.is_empty(),
                "the pictures show what is not there any more: {gone:#?}, and lack {new:#?}; `cargo xtask pictures` takes them anew"
            );
        });
    });
}

fn lines_of(text: &str) -> BTreeSet<&str> {
    text.lines().filter(|line| !line.is_empty()).collect()
}

/// All that is read in a picture, a line each: what kind of element has it, and its text without figures.
fn read_in(browser: &mut HeadlessBrowser) -> String {
    browser.text(&format!("({TEXTS})()"))
}

/// How the kinds of elements are drawn in these colours.
fn drawn_in(browser: &mut HeadlessBrowser, scheme: &str) -> String {
    browser.text(&format!("({STYLES})('{scheme}')"))
}

/// Visible texts from the top to the end of the picture. Figures, with their units, are one character.
const TEXTS: &str = r##"() => {
  const end = document.querySelector('#policies');
  const is_before = (element) => element.compareDocumentPosition(end) & Node.DOCUMENT_POSITION_FOLLOWING;
  const without_figures = (text) =>
    text.replace(/[0-9][0-9.,:]*( ?(µs|ms|min|s|h|d|B|kB|KB|MB|GB|KiB|MiB|%))?( [0-9][0-9.]*( ?(ms|s|min|h))?)*(?![a-z])/g, '#').replace(/\s+/g, ' ').replace(/#( #)+/g, '#').trim();
  const lines = new Set();
  for (const element of document.querySelectorAll('body *:not(script):not(style)')) {
    if (!element.checkVisibility() || !is_before(element) || element.closest('.unseen')) continue;
    const own = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.textContent).join(' ');
    const text = without_figures(own + ' ' + (element.getAttribute('placeholder') ?? ''));
    const is_slowest_method = element.matches('#tiles dd, #tiles dd *') && /^\w+\/\w+$/.test(text);
    if (/[^#\s–]/.test(text) && !is_slowest_method) lines.add(`${element.tagName.toLowerCase()}: ${text}`);
  }
  return 'read\n' + [...lines].sort().join('\n') + '\n';
}"##;

/// Colours, sizes and borders of the kinds of elements.
const STYLES: &str = r##"(scheme) => {
  const kinds = ['body', 'h1', 'h2', 'nav a', '.note', '#pause', '#filter', '#tiles dt', '#tiles dd', 'th', 'tbody td', 'caption', '.count', 'thead button'];
  const drawn = kinds.map((kind) => {
    const element = document.querySelector(kind);
    if (!element) return `${scheme} ${kind}: none`;
    const style = getComputedStyle(element);
    return `${scheme} ${kind}: ${style.fontSize} ${style.fontWeight} ${style.color} on ${style.backgroundColor}, border ${style.borderBottomWidth} ${style.borderBottomColor}`;
  });
  return drawn.join('\n') + '\n';
}"##;
