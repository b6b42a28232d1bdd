//! `provost tap`: calls as they pass.

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{TapRequest, TapSample};

use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::Failure;
use provost_terminal::numbers;
use provost_terminal::output::{json_line, print};
use provost_terminal::table::{Canvas, Look, broken, clean};

/// `provost tap`.
#[derive(Args, Debug)]
pub(crate) struct Tap {
    /// The tap policy whose samples are shown [default: all taps]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    policy: String,
    /// Only calls of methods that match, such as Get or /kv.Kv/*
    #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
    method: String,
    /// Only calls of apps whose name matches
    #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
    app: String,
    /// End after so many [default: never]
    #[arg(
        long,
        short = 'n',
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true
    )]
    count: u32,
    /// Instead of calls to come: so many of the newest that each tap has kept
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        conflicts_with = "count"
    )]
    recent: u32,
    /// Only a line for each call, without its messages
    #[arg(long)]
    brief: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows samples until there are enough, or for ever.
pub(crate) async fn run(asked: Tap) -> Result<(), Failure> {
    let mut node = Node::connect(&asked.target).await?;
    let request = TapRequest {
        policy: asked.policy,
        method: asked.method,
        samples_max: asked.count,
        app: asked.app,
        recent: asked.recent,
    };
    let mut samples = node.stream(request, AdminClient::tap).await?;
    let canvas = Canvas::of_stdout();
    while let Some(sample) = samples.message().await.map_err(|status| node.failure(&status))? {
        print(&if asked.target.json {
            json_line(&sample)?
        } else {
            draw(&sample, asked.brief, canvas)
        })?;
    }
    Ok(())
}

fn draw(sample: &TapSample, brief: bool, canvas: Canvas) -> String {
    let look = match sample.status.as_str() {
        "OK" => Look::Good,
        _ => Look::Bad,
    };
    let mut out = String::new();
    if sample.lost > 0 {
        let samples = numbers::plural_of(sample.lost, "sample was", "samples were");
        let lost = format!("({samples} not read in time)");
        out += &(Look::Bad.paint(&lost, canvas) + "\n");
    }
    out += &format!(
        "{} {} {} {} {} {} {}\n",
        Look::Faint.paint(&time_of_day(sample.at_unix_us), canvas),
        clean(&sample.app),
        clean(&sample.side),
        Look::Heading.paint(&clean(&sample.method), canvas),
        clean(&sample.peer),
        look.paint(&clean(&sample.status), canvas),
        numbers::time_us(sample.duration_us),
    );
    if !brief && !sample.json.is_empty() {
        out += &format!("  {}\n", clean(&sample.json));
    }
    for warning in warnings(&sample.json) {
        let warning = format!("  warning: {}", clean(&warning));
        out += &(Look::Bad.paint(&broken(&warning, 4, canvas), canvas) + "\n");
    }
    out
}

/// What the node warns of: values that are redacted, and shown at another place.
fn warnings(json: &str) -> Vec<String> {
    let call: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let listed = call["warnings"].as_array().map(Vec::as_slice).unwrap_or_default();
    listed
        .iter()
        .filter_map(|one| one.as_str().map(str::to_owned))
        .collect()
}

/// Of a time in microseconds since 1970, in UTC.
fn time_of_day(at_unix_us: i64) -> String {
    let second = at_unix_us.div_euclid(1_000_000).rem_euclid(86_400);
    let millis = at_unix_us.rem_euclid(1_000_000) / 1000;
    format!(
        "{:02}:{:02}:{:02}.{millis:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_line_and_its_call() {
        let sample = TapSample {
            at_unix_us: 1_700_000_000_123_456,
            app: "shop".into(),
            side: "client".into(),
            method: "/kv.Kv/Get".into(),
            peer: "10.0.0.2:7700".into(),
            status: "OK".into(),
            duration_us: 45.0,
            json: "{\"key\":\"a\"}".into(),
            lost: 2,
            ..TapSample::default()
        };
        let line = "22:13:20.123Z shop client /kv.Kv/Get 10.0.0.2:7700 OK 45 µs\n";
        assert_eq!(
            draw(&sample, false, Canvas::plain()),
            format!("(2 samples were not read in time)\n{line}  {{\"key\":\"a\"}}\n")
        );
        let brief = draw(&TapSample { lost: 0, ..sample }, true, Canvas::plain());
        assert_eq!(brief, line);
    }

    #[test]
    fn warnings_of_redaction_stand_below_the_call() {
        let warning = "the value of the redacted field password is shown in steps[0].metadata.x-user too";
        let sample = TapSample {
            json: format!("{{\"warnings\":[\"{warning}\"]}}"),
            ..TapSample::default()
        };
        let brief = draw(&sample, true, Canvas::plain());
        assert!(brief.ends_with(&format!("  warning: {warning}\n")), "{brief}");
        assert_eq!(warnings("no JSON"), [] as [&str; 0]);
    }
}
