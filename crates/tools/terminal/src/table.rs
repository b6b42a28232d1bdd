//! Tables for people: aligned columns, one line a row whatever the terminal's width, no control characters.

use std::fmt::Write;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Characters between columns, and where the terminal is narrow.
const GAP: usize = 2;
const GAP_NARROW: usize = 1;
/// A column that is cut to fit a terminal keeps so many characters at least.
const CUT_WIDTH_MIN: usize = 8;
/// A text that is broken to fit a terminal has lines of so many characters at least.
const LINE_WIDTH_MIN: usize = 30;

/// How a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// For whom a table is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Columns of the terminal; `None` where nothing has to be cut, as in a file.
    pub width: Option<usize>,
    /// Whether it shows colours.
    pub colour: Colour,
}

/// Whether colours are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Shown,
    Plain,
}

impl Canvas {
    /// What standard output is: a terminal of some width, or not a terminal. No colours with `NO_COLOR`
    /// (<https://no-color.org>) or on a dumb terminal.
    pub fn of_stdout() -> Canvas {
        use std::io::IsTerminal;
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Canvas::plain();
        }
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        let width = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
        Canvas {
            width: (width > 0).then_some(usize::from(width)),
            colour: if set("NO_COLOR") || dumb {
                Colour::Plain
            } else {
                Colour::Shown
            },
        }
    }

    pub const fn plain() -> Canvas {
        Canvas {
            width: None,
            colour: Colour::Plain,
        }
    }
}

/// How a cell or line is to look, where colours are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    #[default]
    Normal,
    Heading,
    Good,
    Bad,
    Faint,
}

impl Look {
    /// The text in this look.
    pub fn paint(self, text: &str, canvas: Canvas) -> String {
        let code = match (canvas.colour, self) {
            (Colour::Plain, _) | (_, Look::Normal) => return text.to_owned(),
            (_, Look::Heading) => "1",
            (_, Look::Good) => "32",
            (_, Look::Bad) => "31",
            (_, Look::Faint) => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    look: Look,
}

impl Cell {
    pub fn new(text: impl AsRef<str>, look: Look) -> Cell {
        let text = clean(text.as_ref());
        Cell { text, look }
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Cell {
        Cell::new(value.to_string(), Look::Normal)
    }
}

#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    /// The column that gives way when the terminal is too narrow.
    flexible: usize,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table whose last column gives way.
    pub fn new(columns: &[(&'static str, Align)]) -> Table {
        Table {
            columns: columns.to_vec(),
            flexible: columns.len().saturating_sub(1),
            rows: Vec::new(),
        }
    }

    /// Adds a row: a cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into());
    }

    /// As text, each line with its end.
    pub fn draw(&self, canvas: Canvas) -> String {
        let layout = self.layout(canvas);
        let mut out = String::new();
        let headings: Vec<Cell> = self
            .columns
            .iter()
            .map(|(name, _)| Cell::new(name, Look::Heading))
            .collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let line = self.line(row, &layout, canvas);
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    /// Widths by what the cells hold. A terminal that is too narrow takes from the last column, then from the gaps, then from
    /// other texts, and at last leaves columns of numbers out, which are never cut.
    fn layout(&self, canvas: Canvas) -> TableLayout {
        let mut layout = TableLayout {
            widths: self.columns.iter().map(|(name, _)| name.width()).collect(),
            gap: GAP,
        };
        for row in &self.rows {
            for (width, cell) in layout.widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        let Some(room) = canvas.width else {
            return layout;
        };
        layout.cut(self.flexible, room);
        if layout.excess(room) > 0 {
            layout.gap = GAP_NARROW;
        }
        for column in self.others_by_width(&layout) {
            layout.cut(column, room);
        }
        for column in (0..self.columns.len()).rev() {
            if layout.excess(room) > 0 && self.columns[column].1 == Align::Right {
                layout.widths[column] = 0;
            }
        }
        layout
    }

    /// The columns of texts but the one that gives way first, the widest first.
    fn others_by_width(&self, layout: &TableLayout) -> Vec<usize> {
        let is_other = |at: &usize| *at != self.flexible && self.columns[*at].1 == Align::Left;
        let mut others: Vec<usize> = (0..self.columns.len()).filter(is_other).collect();
        others.sort_by_key(|at| std::cmp::Reverse(layout.widths[*at]));
        others
    }

    fn line(&self, row: &[Cell], layout: &TableLayout, canvas: Canvas) -> String {
        let mut line = String::new();
        let cells = row.iter().zip(&layout.widths).enumerate();
        for (at, (cell, width)) in cells.filter(|(_, (_, width))| **width > 0) {
            if !line.is_empty() {
                line.push_str(&" ".repeat(layout.gap));
            }
            let text = fit(&cell.text, *width);
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let painted = cell.look.paint(&text, canvas);
            match self.columns.get(at).map(|(_, align)| *align) {
                Some(Align::Right) => line.extend([padding.as_str(), painted.as_str()]),
                // Nothing stands behind the last column, so nothing has to be filled.
                _ if at + 1 == row.len() => line.push_str(&painted),
                _ => line.extend([painted.as_str(), padding.as_str()]),
            }
        }
        line
    }
}

/// How wide the columns of a table are.
#[derive(Debug)]
struct TableLayout {
    /// In characters; a column of none is left out.
    widths: Vec<usize>,
    gap: usize,
}

impl TableLayout {
    /// Characters of a line beyond what there is room for.
    fn excess(&self, room: usize) -> usize {
        let shown = self.widths.iter().filter(|width| **width > 0);
        let gaps = self.gap * shown.clone().count().saturating_sub(1);
        (shown.sum::<usize>() + gaps).saturating_sub(room)
    }

    /// Takes from a column what a line has too much.
    fn cut(&mut self, column: usize, room: usize) {
        let excess = self.excess(room);
        if let Some(width) = self.widths.get_mut(column) {
            *width = width.saturating_sub(excess).max(CUT_WIDTH_MIN.min(*width));
        }
    }
}

/// A text that stands so many characters from the left. On a terminal it is broken between words where it does not fit;
/// elsewhere it is one line, for programs that search in it.
pub fn broken(text: &str, indent: usize, canvas: Canvas) -> String {
    let Some(width) = canvas.width else {
        return text.to_owned();
    };
    let room = width.saturating_sub(indent).max(LINE_WIDTH_MIN);
    let mut lines = String::with_capacity(text.len());
    let mut used = 0;
    for word in text.split(' ') {
        let wide = word.width();
        if used > 0 && used + 1 + wide > room {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += wide;
    }
    lines
}

/// A text of others with lines of its own, each of which stands so many characters from the left, and further by what it begins
/// with: there may be source text, with marks under it. Otherwise as [`broken`].
pub fn broken_lines(text: &str, indent: usize, canvas: Canvas) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, line) in text.trim_end().lines().enumerate() {
        let words = line.trim_start_matches(' ');
        let lead = line.len() - words.len();
        if at > 0 {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.extend(std::iter::repeat_n(' ', lead));
        out.push_str(&broken(&clean(words), indent + lead, canvas));
    }
    out
}

/// A text of at most this width: what does not fit gives way to an ellipsis.
pub fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut fitted = String::new();
    let mut left = width.saturating_sub(1);
    for character in text.chars() {
        let wide = character.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        fitted.push(character);
    }
    fitted.push('…');
    fitted
}

/// Whether a character says something to a terminal, or turns the direction of what follows.
pub fn is_odd(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text without control characters. Names come from apps: they shall not write to an operator's terminal.
pub fn clean(text: &str) -> String {
    if !text.contains(is_odd) {
        return text.to_owned();
    }
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        if is_odd(character) {
            cleaned.extend(character.escape_default())
        } else {
            cleaned.push(character)
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[
            ("APP", Align::Left),
            ("CALLS", Align::Right),
            ("SERVES", Align::Left),
        ]);
        table.row(["kv".into(), 12.into(), "kv.Kv, kv.Admin".into()]);
        table.row(["日本".into(), 1234.into(), Cell::new("", Look::Bad)]);
        table
    }

    #[test]
    fn columns_are_aligned_by_what_is_seen() {
        let expected = "APP   CALLS  SERVES\nkv       12  kv.Kv, kv.Admin\n日本   1234\n";
        assert_eq!(table().draw(Canvas::plain()), expected);
    }

    #[test]
    fn a_narrow_terminal_cuts_the_last_column_and_wraps_nothing() {
        let canvas = Canvas {
            width: Some(24),
            colour: Colour::Plain,
        };
        let drawn = table().draw(canvas);
        assert!(drawn.contains("12  kv.Kv, kv.…\n"), "{drawn}");
        assert!(drawn.lines().all(|line| line.width() <= 24), "{drawn}");
    }

    #[test]
    fn a_terminal_that_is_narrower_still_cuts_other_texts_and_leaves_numbers_out_but_cuts_none() {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("CALLS", Align::Right),
            ("BYTES", Align::Right),
            ("WHERE", Align::Left),
        ]);
        table.row([
            "a-name-of-many-letters".into(),
            1_234_567.into(),
            89_101.into(),
            "somewhere else".into(),
        ]);
        for width in 17..60 {
            let canvas = Canvas {
                width: Some(width),
                colour: Colour::Plain,
            };
            let drawn = table.draw(canvas);
            assert!(
                drawn.lines().all(|line| line.width() <= width),
                "{width}: {drawn}"
            );
            let numbers = drawn.lines().last().unwrap_or_default().split_whitespace();
            let mut numbers = numbers.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            assert!(
                numbers.all(|number| ["1234567", "89101"].contains(&number)),
                "{drawn}"
            );
        }
        let drawn = table.draw(Canvas {
            width: Some(33),
            colour: Colour::Plain,
        });
        assert_eq!(drawn.lines().last(), Some("a-name-of… 1234567 89101 somewhe…"));
    }

    #[test]
    fn texts_are_broken_between_words_on_a_terminal_alone() {
        let text = "one two three four five six seven eight nine ten";
        assert_eq!(broken(text, 4, Canvas::plain()), text);
        let canvas = Canvas {
            width: Some(40),
            colour: Colour::Plain,
        };
        let expected = "one two three four five six seven\n    eight nine ten";
        assert_eq!(broken(text, 4, canvas), expected);
    }

    #[test]
    fn lines_of_a_text_stand_below_each_other_and_say_nothing_to_a_terminal() {
        let text = "a.toml: 1:5\n  |\n1 | x = \x1b[2J\r\n  |     ^\n";
        let expected = "a.toml: 1:5\n     |\n   1 | x = \\u{1b}[2J\n     |     ^";
        assert_eq!(broken_lines(text, 3, Canvas::plain()), expected);
        let canvas = Canvas {
            width: Some(40),
            colour: Colour::Plain,
        };
        let text = "one two three four five six seven eight nine ten\n  1 |   two three four five six seven eight nine ten";
        let expected = "one two three four five six seven\n    eight nine ten\n      1 |   two three four five six\n      seven eight nine ten";
        assert_eq!(broken_lines(text, 4, canvas), expected);
        assert_eq!(broken_lines("", 4, canvas), "");
    }

    #[test]
    fn colours_do_not_move_columns() {
        let canvas = Canvas {
            width: None,
            colour: Colour::Shown,
        };
        let drawn = table().draw(canvas);
        assert!(
            drawn.starts_with("\x1b[1mAPP\x1b[0m   \x1b[1mCALLS\x1b[0m"),
            "{drawn:?}"
        );
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let cell = Cell::from("a\x1b[2Jb\n\u{202e}");
        assert_eq!(cell.text, "a\\u{1b}[2Jb\\n\\u{202e}");
    }
}
