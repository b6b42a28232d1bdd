//! The little of SVG that charts need. All text is escaped; nothing refers to anything outside.

use std::fmt::Write;

/// Text that can stand in HTML and SVG.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other if other.is_control() => out.push('?'),
            other => out.push(other),
        }
    }
    out
}

/// A text that fits a place of so many characters.
pub(super) fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() > characters {
        text.chars()
            .take(characters.saturating_sub(1))
            .chain(['…'])
            .collect()
    } else {
        text.to_owned()
    }
}

/// Where a text begins, or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug)]
pub(super) struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64) -> Drawing {
        Drawing {
            width,
            height,
            body: String::new(),
        }
    }

    /// A bar with a tooltip. Bars of negative width are drawn to the left.
    pub(super) fn bar(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        class: &str,
        tooltip: &str,
    ) {
        let left = if width < 0.0 { x + width } else { x };
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{}</title></rect>",
            width.abs(),
            escaped(tooltip)
        );
    }

    pub(super) fn line(&mut self, (x, y): (f64, f64), (to_x, to_y): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\"/>"
        );
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), class: &str, tooltip: &str) {
        let _ = write!(
            self.body,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}</title></circle>",
            escaped(tooltip)
        );
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(text)
        );
    }

    /// As an image whose name and description a screen reader reads.
    pub(super) fn image(self, id: &str, title: &str, description: &str) -> String {
        format!(
            "<svg role=\"img\" aria-labelledby=\"{id}-t {id}-d\" viewBox=\"0 0 {:.0} {:.0}\" width=\"{:.0}\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{}</svg>",
            self.width,
            self.height,
            self.width,
            escaped(title),
            escaped(description),
            self.body
        )
    }
}

/// From figures to places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
}

impl Axis {
    /// An axis over these figures, between these places.
    pub(super) fn new((from, to): (f64, f64), (begin, end): (f64, f64)) -> Axis {
        let to = if to - from < 1e-9 { from + 1.0 } else { to };
        Axis { from, to, begin, end }
    }

    pub(super) fn place(&self, figure: f64) -> f64 {
        self.begin + (figure - self.from) / (self.to - self.from) * (self.end - self.begin)
    }

    /// The length of a figure.
    pub(super) fn length(&self, figure: f64) -> f64 {
        figure / (self.to - self.from) * (self.end - self.begin)
    }

    /// About five round figures.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let rough = (self.to - self.from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|one| one * power)
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.from / step).ceil() as i64;
        (first..first + 12)
            .map(|at| at as f64 * step)
            .take_while(|tick| *tick <= self.to + step * 1e-6)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(
            escaped("<a href='x'>&\"\u{7}"),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;?"
        );
        assert_eq!(shortened("grüße", 4), "grü…");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            Axis::new((0.0, 23.0), (0.0, 1.0)).ticks(),
            [0.0, 5.0, 10.0, 15.0, 20.0]
        );
        assert_eq!(Axis::new((-3.0, 3.0), (0.0, 1.0)).ticks(), [-2.0, 0.0, 2.0]);
        assert_eq!(Axis::new((0.0, 0.0), (0.0, 10.0)).place(0.5), 5.0);
    }
}
