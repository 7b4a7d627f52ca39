//! The picture of the loss curves.

use std::path::Path;

use plotters::prelude::*;

/// One recipe's line.
pub struct Curve {
    /// Its name with its accuracy.
    pub label: String,
    /// Training loss of every step.
    pub losses: Vec<f32>,
}

/// Points per line: more cannot be told apart.
const POINTS: usize = 240;
/// Part of the run over which a point is averaged.
const WINDOW: usize = 60;
const COLOURS: [RGBColor; 3] = [RGBColor(70, 70, 70), RGBColor(214, 94, 0), RGBColor(0, 114, 178)];

/// Mean over a window that ends at each of at most `POINTS` steps.
fn smooth(losses: &[f32]) -> Vec<(f64, f64)> {
    let window = (losses.len() / WINDOW).max(1);
    let stride = losses.len().div_ceil(POINTS).max(1);
    let point = |end: usize| {
        let part = &losses[end.saturating_sub(window)..end];
        (end as f64, part.iter().map(|v| f64::from(*v)).sum::<f64>() / part.len() as f64)
    };
    (1..=losses.len()).step_by(stride).map(point).collect()
}

/// Draws all curves to an SVG file, the loss on a logarithmic axis.
pub fn draw(path: &Path, title: &str, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<Vec<(f64, f64)>> = curves.iter().map(|c| smooth(&c.losses)).collect();
    let points = || lines.iter().flatten().filter(|p| p.1.is_finite() && p.1 > 0.0);
    let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min).min(1.0);
    let high = points().map(|p| p.1).fold(low, f64::max);
    let steps = points().map(|p| p.0).fold(2.0, f64::max);

    let area = SVGBackend::new(path, (760, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..steps, (low * 0.8..high * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_labels(8)
        .x_desc("step")
        .y_desc("training loss")
        .x_label_formatter(&|v| format!("{v:.0}"))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (i, (curve, line)) in curves.iter().zip(&lines).enumerate() {
        let style = COLOURS[i % COLOURS.len()].stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.iter().filter(|p| p.1 > 0.0).copied(), style))?
            .label(&curve.label)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(180, 180, 180))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_every_curve_and_survives_odd_losses() {
        let path = tempfile::tempdir().unwrap().keep().join("loss.svg");
        let curve = |label: &str, losses: Vec<f32>| Curve { label: label.into(), losses };
        let falling = (0..700).map(|i| 2.3 * 0.99f32.powi(i)).collect();
        draw(&path, "title", &[curve("first", falling), curve("second", vec![1.0, f32::NAN, 0.0]), curve("third", vec![])]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("first") && svg.contains("second") && svg.contains("training loss") && svg.len() < 40_000);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
