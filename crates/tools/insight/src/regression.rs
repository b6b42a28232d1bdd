//! Weighted least squares for a handful of terms.

/// Rows of terms, one value and one weight each.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinearSystem {
    terms: usize,
    rows: Vec<Vec<f64>>,
    values: Vec<f64>,
    weights: Vec<f64>,
}

/// The solution of a [`LinearSystem`].
#[derive(Clone, Debug)]
pub(crate) struct LinearSolution {
    pub(crate) coefficients: Vec<f64>,
    /// The inverse of the weighted normal matrix: times the variance of a row of weight 1, the covariance.
    pub(crate) inverse: Vec<Vec<f64>>,
    /// The weighted sum of squared residuals.
    pub(crate) residual_square: f64,
}

impl LinearSystem {
    pub(crate) fn new(terms: usize) -> LinearSystem {
        LinearSystem {
            terms,
            ..LinearSystem::default()
        }
    }

    pub(crate) fn push(&mut self, row: Vec<f64>, value: f64, weight: f64) {
        debug_assert_eq!(row.len(), self.terms);
        self.rows.push(row);
        self.values.push(value);
        self.weights.push(weight);
    }

    /// The coefficients of least squares, or `None` if the rows do not determine them.
    pub(crate) fn solve(&self) -> Option<LinearSolution> {
        // Terms are scaled to the same size, or the normal matrix is too ill-conditioned to invert.
        let scales = self.scales();
        let mut normal = vec![vec![0.0; self.terms]; self.terms];
        let mut right = vec![0.0; self.terms];
        for ((row, value), weight) in self.rows.iter().zip(&self.values).zip(&self.weights) {
            for i in 0..self.terms {
                let scaled = weight * row[i] / scales[i];
                right[i] += scaled * value;
                for j in 0..self.terms {
                    normal[i][j] += scaled * row[j] / scales[j];
                }
            }
        }
        let mut inverse = invert(&normal)?;
        for i in 0..self.terms {
            for j in 0..self.terms {
                inverse[i][j] /= scales[i] * scales[j];
            }
        }
        let coefficients: Vec<f64> = (0..self.terms)
            .map(|i| {
                (0..self.terms)
                    .map(|j| inverse[i][j] * scales[j] * right[j])
                    .sum()
            })
            .collect();
        let residual_square = self
            .rows
            .iter()
            .zip(&self.values)
            .zip(&self.weights)
            .map(|((row, value), weight)| weight * (value - dot(row, &coefficients)).powi(2))
            .sum();
        Some(LinearSolution {
            coefficients,
            inverse,
            residual_square,
        })
    }

    fn scales(&self) -> Vec<f64> {
        let mut squares = vec![0.0_f64; self.terms];
        for (row, weight) in self.rows.iter().zip(&self.weights) {
            for (square, term) in squares.iter_mut().zip(row) {
                *square += weight * term * term;
            }
        }
        squares
            .into_iter()
            .map(|square| if square > 0.0 { square.sqrt() } else { 1.0 })
            .collect()
    }
}

/// The sum of products.
pub(crate) fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

/// The lower triangle whose square is the matrix, which must be symmetric; rows without any variance become 0.
pub(crate) fn cholesky(matrix: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let size = matrix.len();
    let mut lower = vec![vec![0.0; size]; size];
    for i in 0..size {
        for j in 0..=i {
            let known = dot(&lower[i][..j], &lower[j][..j]);
            let left = matrix[i][j] - known;
            lower[i][j] = match i == j {
                true => left.max(0.0).sqrt(),
                false if lower[j][j] > 0.0 => left / lower[j][j],
                false => 0.0,
            };
        }
    }
    lower
}

/// Gauss and Jordan, with pivots; `None` for a matrix that is singular to working precision.
fn invert(matrix: &[Vec<f64>]) -> Option<Vec<Vec<f64>>> {
    const PIVOT_MIN: f64 = 1e-10;
    let size = matrix.len();
    let mut left = matrix.to_vec();
    let mut right: Vec<Vec<f64>> = (0..size)
        .map(|i| (0..size).map(|j| f64::from(u8::from(i == j))).collect())
        .collect();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|a, b| left[*a][column].abs().total_cmp(&left[*b][column].abs()))?;
        if left[pivot][column].abs() < PIVOT_MIN {
            return None;
        }
        left.swap(column, pivot);
        right.swap(column, pivot);
        let divisor = left[column][column];
        left[column].iter_mut().for_each(|value| *value /= divisor);
        right[column].iter_mut().for_each(|value| *value /= divisor);
        let (left_row, right_row) = (left[column].clone(), right[column].clone());
        for row in (0..size).filter(|row| *row != column) {
            let factor = left[row][column];
            subtract(&mut left[row], &left_row, factor);
            subtract(&mut right[row], &right_row, factor);
        }
    }
    Some(right)
}

fn subtract(row: &mut [f64], other: &[f64], factor: f64) {
    for (value, other) in row.iter_mut().zip(other) {
        *value -= factor * other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_is_found_whatever_the_scale_of_its_terms() {
        let mut system = LinearSystem::new(3);
        for (size, rate) in [
            (64.0, 100.0),
            (1024.0, 50_000.0),
            (65_536.0, 100.0),
            (64.0, 50_000.0),
        ] {
            system.push(vec![1.0, size, rate], 3.0 + 0.001 * size - 2e-5 * rate, 1.0);
        }
        let solution = system.solve().unwrap();
        for (found, expected) in solution.coefficients.iter().zip([3.0, 0.001, -2e-5]) {
            assert!((found - expected).abs() < 1e-8, "{found} {expected}");
        }
        assert!(solution.residual_square < 1e-12);
    }

    #[test]
    fn rows_that_do_not_determine_the_terms_have_no_solution() {
        let mut system = LinearSystem::new(2);
        system.push(vec![1.0, 5.0], 1.0, 1.0);
        system.push(vec![1.0, 5.0], 2.0, 1.0);
        assert!(system.solve().is_none());
    }

    #[test]
    fn a_triangle_squares_to_its_matrix() {
        let lower = cholesky(&[vec![4.0, 2.0], vec![2.0, 5.0]]);
        assert_eq!(lower, vec![vec![2.0, 0.0], vec![1.0, 2.0]]);
    }
}
