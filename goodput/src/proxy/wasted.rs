//! Lost work, which duty cycles cannot show: repeated steps.

use std::collections::HashMap;

use super::{
    observations::StepStart,
    slots::{SlotState, Slots},
};

/// Productive seconds from the first start of each repeated step to the end of its attempt, or to its second
/// start if the chips stayed open. `None` without step numbers.
pub fn wasted_seconds(steps: &[StepStart], slots: &Slots) -> Option<usize> {
    if steps.is_empty() {
        return None;
    }
    let mut seen: HashMap<i64, f64> = HashMap::new();
    let mut wasted = 0;
    for step in steps {
        if let Some(first) = seen.get(&step.0).copied() {
            let range = slots.range(first, step.1);
            let attempt = slots.filled[range].iter().take_while(|state| **state != SlotState::Closed);
            wasted += attempt.filter(|state| **state == SlotState::Active).count();
            seen.clear();
        }
        seen.insert(step.0, step.1);
    }
    Some(wasted)
}
