//! Curves over the arrival rate as a picture: one line a policy, so that the knee is seen.

use std::fmt::Write;

/// A line: its name and its points.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Okabe and Ito's colours, which the colour-blind can tell apart.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// Draws curves; `title`, and what the axes mean.
pub fn curves(title: &str, x: &str, y: &str, curves: &[Curve]) -> String {
    let points =
        || curves.iter().flat_map(|curve| &curve.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let (x0, x1) = range(points().map(|point| point.0));
    let top = nice(points().map(|point| point.1).fold(0.0, f64::max));
    let place = |(at, value): (f64, f64)| {
        let across = if x1 > x0 { (at - x0) / (x1 - x0) } else { 0.5 };
        (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (value / top).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM),
        )
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let ticks = 5;
    for n in 0..=ticks {
        let share = f64::from(n) / f64::from(ticks);
        let (across, _) = place((x0 + share * (x1 - x0), 0.0));
        let (_, up) = place((x0, share * top));
        let bottom = HEIGHT - BOTTOM;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {up:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{across:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            up + 4.0,
            figure(share * top),
            bottom + 18.0,
            figure(x0 + share * (x1 - x0)),
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 12.0,
        escaped(x),
        (TOP + HEIGHT - BOTTOM) / 2.0,
        escaped(y)
    );
    for (n, curve) in curves.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let dash = if n < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let line: Vec<String> = curve
            .points
            .iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|point| place(*point))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let up = TOP + 10.0 + 18.0 * n as f64;
        let right = WIDTH - RIGHT + 16.0;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
             <path d=\"M{right} {up}h18\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            line.join(" "),
            right + 24.0,
            up + 4.0,
            escaped(&curve.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

/// The next of 1, 2, 2.5, 5 and their tens.
fn nice(top: f64) -> f64 {
    if !(top > 0.0 && top.is_finite()) {
        return 1.0;
    }
    let ten = 10_f64.powf(top.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * ten).find(|step| *step >= top).unwrap_or(top)
}

fn figure(x: f64) -> String {
    let text = format!("{x:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_is_drawn_with_its_name() {
        let curve =
            |name: &str| Curve { name: name.into(), points: vec![(1.0, 0.5), (2.0, f64::NAN), (3.0, 0.9)] };
        let svg = curves("a < b", "rate", "good", &[curve("one"), curve("two")]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains(">two<") && !svg.contains("NaN"));
    }
}
