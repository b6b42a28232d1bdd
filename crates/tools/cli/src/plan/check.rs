//! What has to hold after a step, and for how long.

use std::time::Duration;

use provost_admin::v1::status::State;
use provost_admin::v1::{MethodStats, Snapshot, Status};
use tokio::time::Instant;
use wildmatch::WildMatch;

use provost_terminal::failure::{Exit, Failure};
use provost_terminal::numbers;

use super::file::Check;
use super::place::{Ask, Place, run};

/// Over what rates are measured.
const LOOK_S: f64 = 1.0;
/// Between two looks at a node's state.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a command of a check may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);

/// Waits until a check holds, and has held for as long as it says.
pub(crate) async fn hold(check: &Check, place: Option<&Place>) -> Result<(), Failure> {
    let latest_begin = Instant::now() + Duration::from_secs_f64(check.within_s);
    let wanted = Duration::from_secs_f64(check.for_s);
    let mut held_since: Option<Instant> = None;
    loop {
        let looked_at = Instant::now();
        match look(check, place).await {
            Ok(()) => {
                let since = *held_since.get_or_insert(looked_at);
                if since.elapsed() >= wanted {
                    return Ok(());
                }
            }
            Err(failure) if Instant::now() >= latest_begin => {
                let message = match held_since {
                    Some(since) => format!(
                        "{failure}, after it had held for {:.0} s",
                        since.elapsed().as_secs_f64()
                    ),
                    None => failure.message,
                };
                return Err(Failure::new(failure.exit, format!("check: {message}")));
            }
            Err(_) => held_since = None,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn look(check: &Check, place: Option<&Place>) -> Result<(), Failure> {
    if let Some(place) = place {
        if check.serving {
            let status: Status = place.ask(Ask::Status).await?;
            if status.state() != State::Serving {
                return Err(no(format!("{} does not serve", place.name)));
            }
        }
        if check.looks_at_calls() {
            let snapshot: Snapshot = place.ask(Ask::Look { interval_s: LOOK_S }).await?;
            judge(check, &snapshot).map_err(|failure| failure.within(&place.name))?;
        }
    }
    if !check.command.is_empty() {
        let done = run(&check.command, None, COMMAND_TIME_MAX).await?;
        done.succeeded()
            .map_err(|failure| failure.within(&check.command.join(" ")))?;
    }
    Ok(())
}

fn no(message: String) -> Failure {
    Failure::new(Exit::Failed, message)
}

fn judge(check: &Check, snapshot: &Snapshot) -> Result<(), Failure> {
    let rows: Vec<_> = snapshot
        .methods
        .iter()
        .filter(|row| concerns(check, row))
        .collect();
    let sum = |value: fn(&MethodStats) -> f64| -> f64 { rows.iter().map(|row| value(row)).sum() };
    let (rate, errors) = (sum(|row| row.rate), sum(|row| row.error_rate));
    if let Some(least) = check.rate_min
        && rate < least
    {
        return Err(no(format!(
            "{} calls/s, fewer than {}",
            numbers::rate(rate),
            numbers::rate(least)
        )));
    }
    let share = if errors > 0.0 {
        errors / rate.max(errors)
    } else {
        0.0
    };
    if let Some(most) = check.error_rate_max
        && share > most
    {
        return Err(no(format!(
            "{} of the calls fail, more than {}",
            numbers::percent(share),
            numbers::percent(most)
        )));
    }
    let slowest = rows
        .iter()
        .max_by(|one, other| one.latency_us_p99.total_cmp(&other.latency_us_p99));
    if let (Some(most), Some(row)) = (check.latency_p99_us_max, slowest)
        && row.latency_us_p99 > most
    {
        let (found, most) = (numbers::time_us(row.latency_us_p99), numbers::time_us(most));
        return Err(no(format!(
            "p99 of {}/{} is {found}, more than {most}",
            row.service, row.method
        )));
    }
    Ok(())
}

fn concerns(check: &Check, row: &MethodStats) -> bool {
    matches(&check.app, &row.app)
        && matches(&check.service, &row.service)
        && matches(&check.method, &row.method)
}

/// Whether a text is what a pattern describes; `*` stands for any run of characters, `?` for one.
fn matches(pattern: &str, text: &str) -> bool {
    WildMatch::new(pattern).matches(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Check {
        toml::from_str(text).unwrap()
    }

    fn snapshot() -> Snapshot {
        let row = |app: &str, rate, error_rate, p99| MethodStats {
            app: app.into(),
            service: "kv.Kv".into(),
            method: "Get".into(),
            rate,
            error_rate,
            latency_us_p99: p99,
            ..MethodStats::default()
        };
        Snapshot {
            methods: vec![row("shop", 90.0, 0.0, 100.0), row("bank", 10.0, 5.0, 900.0)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_errors_and_latencies_are_judged_for_the_calls_that_are_meant() {
        let good = |text: &str| judge(&check(text), &snapshot()).is_ok();
        assert!(good("error_rate_max = 0.05"));
        assert!(!good("error_rate_max = 0.04"));
        assert!(good("error_rate_max = 0.0\napp = \"sh*\""));
        assert!(good("rate_min = 100"));
        assert!(!good("rate_min = 100\napp = \"shop\""));
        assert!(!good("latency_p99_us_max = 500"));
        assert!(good("latency_p99_us_max = 500\napp = \"s?op\""));
        assert!(good("error_rate_max = 0.0\nmethod = \"Put\""));
    }

    #[tokio::test]
    async fn a_check_that_does_not_begin_to_hold_in_time_fails_with_its_reason() {
        let failing = |command: &str| check(&format!("command = {command}\nwithin_s = 0"));
        for (command, expected) in [
            (
                "[\"sh\", \"-c\", \"echo broken >&2; exit 3\"]",
                "check: sh -c echo broken >&2; exit 3: exit status 3: broken",
            ),
            ("[\"false\"]", "check: false: exit status 1"),
            (
                "[\"sh\", \"-c\", \"kill -9 $$\"]",
                "check: sh -c kill -9 $$: killed by a signal",
            ),
        ] {
            let failure = hold(&failing(command), None).await.unwrap_err();
            assert_eq!(failure.message, expected);
        }
        hold(&check("command = [\"true\"]"), None).await.unwrap();
    }
}
