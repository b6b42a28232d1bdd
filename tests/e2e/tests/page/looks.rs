//! What people find on the page: with their eyes, with a keyboard alone, with a screen reader.

use std::net::SocketAddr;

use provost_e2e::script::{Ask, StatusParts};
use provost_e2e::{Setting, watched};
use serde_json::{Value, json};

use crate::browser::{HeadlessBrowser, is_missing};
use crate::node_page::{POLICIES, TOKEN, address, echo, folder, page_at_port, pair, token_file};

/// Elements that a keyboard reaches, as far as they are shown, in the order of the document.
const REACHED: &str = "[...document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]')]\
                       .filter((element) => element.checkVisibility())";
/// A text is read easily with this contrast at least (WCAG 2.2, success criterion 1.4.3).
const CONTRAST_MIN: f64 = 4.5;

/// A pair under some calls, and a browser that shows the page of the first node.
pub(crate) struct LookedAtPair {
    pub(crate) setting: Setting,
    pub(crate) page: SocketAddr,
    pub(crate) browser: HeadlessBrowser,
    pub(crate) _folder: tempfile::TempDir,
}

pub(crate) fn looked_at(role: &str) -> LookedAtPair {
    let folder = folder();
    let file = token_file(folder.path());
    let mut setting = pair(page_at_port(&file, role) + POLICIES);
    setting.agent.succeeds(echo(20));
    setting.agent.fails(Ask::Fail(StatusParts {
        code: 5,
        ..StatusParts::default()
    }));
    let page = address(&setting.a);
    let mut browser = HeadlessBrowser::start();
    browser.open(page, TOKEN);
    browser.wait_for("document.querySelector('#traffic-table tbody th') !== null");
    LookedAtPair {
        setting,
        page,
        browser,
        _folder: folder,
    }
}

#[test]
fn the_page_shows_apps_methods_datapaths_and_policies_and_asks_nobody_else() {
    if is_missing() {
        return;
    }
    watched(|| {
        let LookedAtPair {
            setting,
            page,
            mut browser,
            _folder,
            ..
        } = looked_at("operate");
        let mut shown =
            |element: &str| browser.text(&format!("document.querySelector({element:?}).innerText"));
        for (element, texts) in [
            (
                "#traffic-table",
                &["Echo", "probe.Probe", "e2e-role", "client", "Fail"][..],
            ),
            (
                "#datapaths-table",
                &["limits-fails (rate-limit version 2)", "transport-tcp", "frontend"],
            ),
            (
                "#policies-table",
                &["counts", "metrics version 1", "probe.Probe · Fail"],
            ),
            ("#paths-table", &["e2e-role", "calls", "probe.Probe"]),
            ("#taps-table", &["/probe.Probe/Echo", "✓ OK", "✕ NOT_FOUND"]),
            ("#apps-table", &["e2e-role"]),
            ("#engines-table", &["transport-tcp", "built in"]),
            ("#node-facts", &["✓ serving", "you may operate"]),
        ] {
            let text = shown(element);
            for expected in texts {
                assert!(text.contains(expected), "{element} lacks {expected:?}: {text}");
            }
        }
        let graph = browser.text("document.querySelector('#picture').getAttribute('aria-label')");
        assert!(graph.contains("e2e-role calls probe.Probe"), "{graph}");
        // The token is not left in the address, where it would be seen and remembered.
        assert_eq!(browser.text("location.href"), format!("http://{page}/"));
        let requests = browser.requests();
        let own = format!("http://{page}/");
        assert!(
            requests.len() >= 3 && requests.iter().all(|url| url.starts_with(&own)),
            "{requests:?}"
        );
        assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());

        // What changes is told to those who do not see it, and what was there already is not.
        setting.a.operate(&["policy", "attach", "--kind", "null"]);
        browser.wait_for(
            "document.querySelector('#announcement').textContent.includes('attached null on 1 datapath')",
        );
        drop(setting);
        browser.wait_for("document.querySelector('#problem').innerText.includes('does not answer')");
    });
}

#[test]
fn a_page_without_its_token_asks_for_it_and_shows_no_more() {
    if is_missing() {
        return;
    }
    watched(|| {
        let LookedAtPair {
            setting: _setting,
            page,
            mut browser,
            _folder,
            ..
        } = looked_at("view");
        let note = browser.text("document.querySelector('#taps-note').innerText");
        assert!(note.contains("role operate"), "{note}");
        let mut other = HeadlessBrowser::start();
        other.open(page, "wrong-wrong-wrong-wrong-wrong-wrong");
        other.wait_for("!document.querySelector('#access').hidden");
        assert_eq!(
            other.value("document.querySelector('#content').checkVisibility()"),
            false
        );
        assert_eq!(other.text("document.activeElement.id"), "token");
        let said = other.text("document.querySelector('#access-reason').innerText");
        assert!(said.contains("this is not the token"), "{said}");
        other.call("Input.insertText", json!({ "text": TOKEN }));
        let enter = json!({ "type": "keyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r" });
        other.call("Input.dispatchKeyEvent", enter);
        other.wait_for("document.querySelector('#content').checkVisibility()");
    });
}

#[test]
fn a_keyboard_reaches_everything_in_the_order_of_the_page_and_keeps_its_place() {
    if is_missing() {
        return;
    }
    watched(|| {
        let LookedAtPair {
            setting: _setting,
            mut browser,
            _folder,
            ..
        } = looked_at("operate");
        // Rows come and go; what is walked through is to stand still.
        browser.value("document.querySelector('#pause').click()");
        let expected = browser.value(&format!(
            "{REACHED}.map((element, at) => (element.dataset.at = String(at)))"
        ));
        let expected = expected.as_array().unwrap().clone();
        assert!(expected.len() > 40, "{expected:?}");
        browser.value("document.activeElement.blur()");
        let mut reached = Vec::new();
        for _ in 0..expected.len() {
            browser.press("Tab", 9);
            reached
                .push(browser.value("document.activeElement.dataset.at ?? document.activeElement.outerHTML"));
        }
        assert_eq!(reached, expected);
        let first = browser.text("document.querySelector('[data-at=\"0\"]').innerText");
        assert_eq!(first, "Skip to the content");

        // Each of them shows where one is.
        let outline = browser.text("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid");

        // A refresh leaves the focus, and what is unfolded, where they are.
        browser.value("document.querySelector('#taps-table summary').focus()");
        browser.value("document.querySelector('#taps-table details').open = true");
        browser.value("document.activeElement.dataset.here = 'yes'; document.querySelector('#updated').textContent = 'before'");
        browser.value("document.querySelector('#pause').dispatchEvent(new MouseEvent('click'))");
        browser.wait_for("document.querySelector('#updated').textContent !== 'before'");
        assert_eq!(browser.text("document.activeElement.dataset.here"), "yes");
        assert_eq!(
            browser.value("document.querySelector('#taps-table details').open"),
            true
        );
    });
}

#[test]
fn every_control_and_table_has_a_name_and_every_text_can_be_read_in_light_and_dark() {
    if is_missing() {
        return;
    }
    watched(|| {
        let LookedAtPair {
            setting: _setting,
            mut browser,
            _folder,
            ..
        } = looked_at("operate");
        let tree = browser.call("Accessibility.getFullAXTree", json!({}));
        let mut seen = 0;
        for node in tree["nodes"].as_array().unwrap() {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let is_named = [
                "button",
                "link",
                "searchbox",
                "table",
                "region",
                "navigation",
                "columnheader",
                "rowheader",
                "img",
            ];
            if node["ignored"] == false && is_named.contains(&role) {
                seen += 1;
                assert!(
                    !node["name"]["value"].as_str().unwrap_or_default().is_empty(),
                    "{node}"
                );
            }
        }
        assert!(seen > 60, "{seen}");
        let headings = browser.value(
            "[...document.querySelectorAll('h1, h2, h3')].map((heading) => Number(heading.tagName[1]))",
        );
        let levels: Vec<i64> = headings
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_i64)
            .collect();
        assert!(
            levels[0] == 1 && levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
            "{levels:?}"
        );
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            let faint = browser.value(&format!("({FAINT_TEXTS})({CONTRAST_MIN})"));
            assert_eq!(faint, json!([]), "{scheme}");
        }
    });
}

/// The texts whose contrast is less than the least, each with it.
const FAINT_TEXTS: &str = r#"(least) => {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  const seen = document.querySelectorAll('body *:not(script):not(style):not(svg *)');
  let checked = 0;
  for (const element of seen) {
    const has_text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!has_text || !element.checkVisibility()) continue;
    checked += 1;
    const [one, other] = [luminance(channels(getComputedStyle(element).color)), luminance(ground(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < least) faint.push(`${element.textContent.slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return checked > 50 ? faint : ['too little was checked'];
}"#;
