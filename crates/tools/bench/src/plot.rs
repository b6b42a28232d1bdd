//! Plots, as SVG files.

use std::path::Path;

use plotters::prelude::*;

use crate::failure::Failure;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (960, 420);

/// A line over time, with the moments at which something was done.
pub(crate) struct TimePlot<'a> {
    pub(crate) title: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) lines: Vec<(&'a str, Vec<(f64, f64)>)>,
    /// Seconds, and what was done.
    pub(crate) marks: Vec<(f64, &'a str)>,
}

impl TimePlot<'_> {
    /// Draws it into a file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        self.draw(path)
            .map_err(|error| Failure::role("plot", format!("{}: {error}", path.display())))
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let seconds = points().map(|point| point.0).fold(0.0, f64::max);
        let most = points().map(|point| point.1).fold(0.0, f64::max) * 1.1;
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..seconds, 0.0..most.max(1.0))?;
        chart
            .configure_mesh()
            .x_desc("seconds")
            .y_desc(self.unit)
            .draw()?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let color = Palette99::pick(number).to_rgba();
            chart
                .draw_series(LineSeries::new(points.iter().copied(), &color))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color));
        }
        for (at, what) in &self.marks {
            let mark = [(*at, 0.0), (*at, most)];
            chart.draw_series(LineSeries::new(mark, &RED.mix(0.4)))?;
            chart.draw_series([Text::new(
                (*what).to_owned(),
                (*at, most * 0.97),
                ("sans-serif", 12),
            )])?;
        }
        let legend = BLACK.mix(0.5);
        chart.configure_series_labels().border_style(legend).draw()?;
        area.present()?;
        Ok(())
    }
}

/// Bars, one for each name.
pub(crate) struct BarPlot<'a> {
    pub(crate) title: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) bars: Vec<(&'a str, f64)>,
}

impl BarPlot<'_> {
    /// Draws it into a file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        self.draw(path)
            .map_err(|error| Failure::role("plot", format!("{}: {error}", path.display())))
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let most = self.bars.iter().map(|bar| bar.1).fold(0.0, f64::max) * 1.1;
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(180)
            .build_cartesian_2d(0.0..most.max(1.0), 0.0..self.bars.len() as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_desc(self.unit)
            .draw()?;
        for (number, (name, value)) in self.bars.iter().enumerate() {
            let place = (self.bars.len() - 1 - number) as f64;
            let color = Palette99::pick(number % 2).filled();
            chart.draw_series([Rectangle::new(
                [(0.0, place + 0.15), (*value, place + 0.85)],
                color,
            )])?;
            let (x, y) = chart.backend_coord(&(0.0, place + 0.65));
            area.draw(&Text::new((*name).to_owned(), (x - 170, y), ("sans-serif", 14)))?;
        }
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let (time, bars) = (folder.path().join("time.svg"), folder.path().join("bars.svg"));
        let plot = TimePlot {
            title: "rate",
            unit: "calls/s",
            lines: vec![("app", vec![(0.0, 1.0), (1.0, 2.0)])],
            marks: vec![(0.5, "upgrade")],
        };
        plot.write(&time).unwrap();
        let plot = BarPlot {
            title: "rate",
            unit: "calls/s",
            bars: vec![("null", 3.0), ("limit", 2.0)],
        };
        plot.write(&bars).unwrap();
        let text = std::fs::read_to_string(&time).unwrap() + &std::fs::read_to_string(&bars).unwrap();
        assert!(text.contains("upgrade") && text.contains("limit"), "{text}");
    }
}
