//! A dense network with ReLU between its layers, and the step that trains it (Adam, on the Huber loss of one output a sample).
//!
//! A few thousand weights do not need a library. Sums are in a fixed order, so a network is trained to the same bits again.

use super::super::workload::Draw;
use serde::{Deserialize, Serialize};
use weir::invalid::{Invalid, read};

/// A network.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Net {
    /// Inputs, widths of the hidden layers, outputs.
    shape: Vec<usize>,
    /// Layer after layer: of each output its bias, then its weights.
    weights: Vec<f32>,
}

/// What training remembers of each weight.
#[derive(Clone, Debug)]
pub(super) struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
    steps: i32,
    gradient: Vec<f32>,
}

impl Net {
    /// A network with random weights (He, 2015).
    pub(super) fn new(shape: &[usize], draw: &mut Draw) -> Self {
        let mut weights = Vec::with_capacity(size(shape));
        for pair in shape.windows(2) {
            let scale = (2.0 / pair[0] as f64).sqrt();
            for _ in 0..pair[1] {
                weights.push(0.0);
                weights.extend((0..pair[0]).map(|_| (draw.normal() * scale) as f32));
            }
        }
        Self { shape: shape.to_vec(), weights }
    }

    /// Reads a file of weights; refuses another shape than this, and what is no number.
    pub fn read(json: &[u8], shape: &[usize]) -> Result<Self, Invalid> {
        let net: Self = read(json)?;
        if net.shape != shape {
            return Err(Invalid::new("shape", format!("{:?}: expected {shape:?}", net.shape)));
        }
        if net.weights.len() != size(shape) {
            let why = format!("{}: expected {} of them", net.weights.len(), size(shape));
            return Err(Invalid::new("weights", why));
        }
        match net.weights.iter().position(|weight| !weight.is_finite()) {
            Some(at) => Err(Invalid::new(format!("weights[{at}]"), "not a number")),
            None => Ok(net),
        }
    }

    /// As [`Net::read`] takes it.
    pub fn write(&self) -> String {
        let weights: Vec<String> = self.weights.iter().map(|weight| format!("{weight:.5}")).collect();
        format!("{{\"shape\": {:?}, \"weights\": [\n{}\n]}}\n", self.shape, weights.join(","))
    }

    /// The outputs for these inputs.
    pub fn ask(&self, inputs: &[f32]) -> Vec<f32> {
        self.layers(inputs).pop().unwrap_or_default()
    }

    /// What each layer gives, the inputs first.
    fn layers(&self, inputs: &[f32]) -> Vec<Vec<f32>> {
        let mut all = vec![inputs.to_vec()];
        let mut at = 0;
        for (layer, pair) in self.shape.windows(2).enumerate() {
            let last = layer + 2 == self.shape.len();
            let own = &self.weights[at..at + pair[1] * (pair[0] + 1)];
            let output = |row: &[f32]| {
                let sum = row[0] + row[1..].iter().zip(&all[layer]).map(|(a, b)| a * b).sum::<f32>();
                if last { sum } else { sum.max(0.0) }
            };
            let outputs = own.chunks_exact(pair[0] + 1).map(output).collect();
            all.push(outputs);
            at += own.len();
        }
        all
    }

    /// Moves the weights so that output `which` of each sample comes nearer to what it should be.
    pub(super) fn fit<'a>(
        &mut self,
        adam: &mut Adam,
        samples: impl Iterator<Item = (&'a [f32], usize, f32)>,
        rate: f32,
    ) {
        adam.gradient.iter_mut().for_each(|gradient| *gradient = 0.0);
        let mut count = 0.0;
        for (inputs, which, target) in samples {
            let layers = self.layers(inputs);
            let mut blame = vec![0.0; *self.shape.last().unwrap_or(&0)];
            blame[which] = (layers[layers.len() - 1][which] - target).clamp(-1.0, 1.0);
            self.blame(&layers, blame, &mut adam.gradient);
            count += 1.0;
        }
        adam.step(&mut self.weights, count, rate);
    }

    /// Adds to `gradient` what each weight did to the outputs' error.
    fn blame(&self, layers: &[Vec<f32>], mut blame: Vec<f32>, gradient: &mut [f32]) {
        let mut end = self.weights.len();
        for (layer, pair) in self.shape.windows(2).enumerate().rev() {
            let width = pair[0] + 1;
            let begin = end - pair[1] * width;
            let mut before = vec![0.0; pair[0]];
            for (output, own) in blame.iter().enumerate().filter(|(_, own)| **own != 0.0) {
                let row = begin + output * width;
                gradient[row] += own;
                for (input, value) in layers[layer].iter().enumerate() {
                    gradient[row + 1 + input] += own * value;
                    before[input] += own * self.weights[row + 1 + input];
                }
            }
            // A hidden output that was cut off at 0 did nothing.
            before
                .iter_mut()
                .zip(&layers[layer])
                .filter(|(_, value)| **value <= 0.0)
                .for_each(|(own, _)| *own = 0.0);
            blame = before;
            end = begin;
        }
    }
}

impl Adam {
    pub(super) fn new(net: &Net) -> Self {
        let zeros = vec![0.0; net.weights.len()];
        Self { mean: zeros.clone(), square: zeros.clone(), steps: 0, gradient: zeros }
    }

    fn step(&mut self, weights: &mut [f32], count: f32, rate: f32) {
        const KEEP: (f32, f32) = (0.9, 0.999);
        self.steps += 1;
        let (mean, square) = (1.0 - KEEP.0.powi(self.steps), 1.0 - KEEP.1.powi(self.steps));
        for (at, weight) in weights.iter_mut().enumerate() {
            let gradient = self.gradient[at] / count;
            self.mean[at] = KEEP.0 * self.mean[at] + (1.0 - KEEP.0) * gradient;
            self.square[at] = KEEP.1 * self.square[at] + (1.0 - KEEP.1) * gradient * gradient;
            *weight -= rate * (self.mean[at] / mean) / ((self.square[at] / square).sqrt() + 1e-8);
        }
    }
}

/// Weights of a network of this shape.
fn size(shape: &[usize]) -> usize {
    shape.windows(2).map(|pair| pair[1] * (pair[0] + 1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_learned_to_the_same_bits_each_time() {
        let learned = || {
            let mut draw = Draw::new(1, 9);
            let mut net = Net::new(&[2, 16, 16, 2], &mut draw);
            let mut adam = Adam::new(&net);
            for _ in 0..3_000 {
                let inputs: Vec<[f32; 2]> =
                    (0..16).map(|_| [draw.unit() as f32, draw.unit() as f32]).collect();
                let target = |[a, b]: [f32; 2], which| if which == 0 { a * b } else { (a - b).abs() };
                let samples = inputs.iter().enumerate().map(|(at, x)| (&x[..], at % 2, target(*x, at % 2)));
                net.fit(&mut adam, samples, 0.003);
            }
            net
        };
        let net = learned();
        let said = net.ask(&[0.5, 0.8]);
        assert!((said[0] - 0.4).abs() < 0.05 && (said[1] - 0.3).abs() < 0.05, "{said:?}");
        assert_eq!(net, learned());
    }

    #[test]
    fn a_file_is_read_as_written_and_what_is_wrong_is_refused() {
        let shape = [3, 4, 2];
        let net = Net::new(&shape, &mut Draw::new(1, 9));
        let read = Net::read(net.write().as_bytes(), &shape).unwrap();
        assert_eq!(read.write(), net.write());
        let said = |text: &str, shape: &[usize]| Net::read(text.as_bytes(), shape).unwrap_err().to_string();
        assert!(said(&net.write(), &[3, 5, 2]).starts_with("shape: "));
        assert!(said(r#"{"shape": [3, 4, 2], "weights": [1]}"#, &shape).starts_with("weights: 1"));
        let nan = net.write().replacen("0.00000", "1e60", 1);
        assert!(Net::read(nan.as_bytes(), &shape).is_err());
    }
}
