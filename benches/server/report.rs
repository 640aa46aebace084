//! What was to be reached, and whether it was.

/// One figure with its bound.
struct Goal {
    what: String,
    got: f64,
    most: f64,
}

#[derive(Default)]
pub struct Report {
    goals: Vec<Goal>,
}

impl Report {
    /// `got` is to be at most `most`.
    pub fn goal(&mut self, what: impl Into<String>, got: f64, most: f64) {
        self.goals.push(Goal { what: what.into(), got, most });
    }

    pub fn print(&self) {
        if self.goals.is_empty() {
            return;
        }
        println!("\n{:<74} {:>9} {:>9}", "goal", "at most", "is");
        for Goal { what, got, most } in &self.goals {
            let verdict = if got <= most { "" } else { "  MISSED" };
            println!("{what:<74} {most:>9.2} {got:>9.2}{verdict}");
        }
    }
}
