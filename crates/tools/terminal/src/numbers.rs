//! Numbers as people read them.

/// Bytes, in binary units.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A time in microseconds, in the unit that suits it; `-` for none.
pub fn time_us(us: f64) -> String {
    match us {
        _ if us <= 0.0 => "-".to_owned(),
        _ if us < 10.0 => format!("{us:.1} µs"),
        _ if us < 1e3 => format!("{us:.0} µs"),
        _ if us < 1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// So many of something: `1 app`, `2 apps`.
pub fn plural(count: u64, one: &str) -> String {
    plural_of(count, one, &format!("{one}s"))
}

/// So many of something whose plural is irregular: `1 policy`, `2 policies`.
pub fn plural_of(count: u64, one: &str, many: &str) -> String {
    let what = if count == 1 { one } else { many };
    format!("{count} {what}")
}

/// How long ago, roughly.
pub fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// A rate per second.
pub fn rate(per_s: f64) -> String {
    match per_s {
        _ if per_s >= 1e6 => format!("{:.2} M", per_s / 1e6),
        _ if per_s >= 1e4 => format!("{:.1} k", per_s / 1e3),
        _ if per_s >= 100.0 => format!("{per_s:.0}"),
        // The sum of no numbers is less than zero by its sign.
        0.0 => "0".to_owned(),
        _ => format!("{per_s:.1}"),
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.1 => "<0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_unit_that_suits_them() {
        assert_eq!(
            [bytes(1023), bytes(1536), bytes(3 << 30)],
            ["1023 B", "1.5 KiB", "3.0 GiB"]
        );
        assert_eq!(
            [time_us(0.0), time_us(9.94), time_us(45.2), time_us(1234.0)],
            ["-", "9.9 µs", "45 µs", "1.2 ms"]
        );
        assert_eq!(
            [age(59.9), age(61.0), age(7265.0), age(90_000.0)],
            ["59 s", "1 min 1 s", "2 h 1 min", "1 d 1 h"]
        );
        assert_eq!(
            [rate(0.0), rate(-0.0), rate(3.24), rate(150.4), rate(12_345.0)],
            ["0", "0", "3.2", "150", "12.3 k"]
        );
        assert_eq!(
            [percent(0.0), percent(0.0001), percent(0.256)],
            ["0 %", "<0.1 %", "25.6 %"]
        );
    }
}
