//! Self time: the events of one line, nested by containment, as they come.

/// An event that may still get children.
#[derive(Debug, Clone, Copy)]
struct OpenEvent<T> {
    start: i64,
    end: i64,
    children: i64,
    what: T,
}

/// How deep nesting is followed. Real programs nest by tens; what is deeper counts as a sibling.
pub(super) const DEEPEST: usize = 4096;

/// The open events of a line. Events come by start, enclosing ones first.
#[derive(Debug)]
pub(super) struct Nesting<T> {
    open: Vec<OpenEvent<T>>,
}

impl<T: Copy> Nesting<T> {
    pub(super) fn new() -> Self {
        Self { open: Vec::new() }
    }

    /// Takes the next event; `done` gets every event that ended, with its whole time and its self time.
    ///
    /// A child lies fully inside the event that opened before it; what overlaps partly is a sibling, and both
    /// keep their full time.
    #[inline]
    pub(super) fn push(&mut self, start: i64, end: i64, what: T, mut done: impl FnMut(T, i64, i64)) {
        while let Some(&top) = self.open.last() {
            if top.start <= start && end <= top.end && self.open.len() < DEEPEST {
                break;
            }
            self.open.pop();
            close(top, &mut done);
        }
        if let Some(parent) = self.open.last_mut() {
            parent.children = parent.children.saturating_add(end.saturating_sub(start));
        }
        self.open.push(OpenEvent { start, end, children: 0, what });
    }

    /// Ends everything that is open.
    pub(super) fn finish(&mut self, mut done: impl FnMut(T, i64, i64)) {
        while let Some(top) = self.open.pop() {
            close(top, &mut done);
        }
    }
}

fn close<T>(event: OpenEvent<T>, done: &mut impl FnMut(T, i64, i64)) {
    let whole = event.end.saturating_sub(event.start);
    done(event.what, whole, whole.saturating_sub(event.children));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_taken_off_their_parent_only() {
        let mut nesting = Nesting::new();
        let mut seen = Vec::new();
        let mut push = |start, end, what| nesting.push(start, end, what, |w, t, s| seen.push((w, t, s)));
        push(0, 100, "while");
        push(10, 60, "call");
        push(20, 30, "a");
        push(30, 60, "b");
        push(60, 100, "c");
        push(90, 120, "overlaps");
        nesting.finish(|w, t, s| seen.push((w, t, s)));
        assert_eq!(
            seen,
            [
                ("a", 10, 10),
                ("b", 30, 30),
                ("call", 50, 10),
                ("c", 40, 40),
                ("while", 100, 10),
                ("overlaps", 30, 30)
            ]
        );
    }
}
