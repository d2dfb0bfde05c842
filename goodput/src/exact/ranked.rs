//! A multiset of numbers that answers "how many, and what sum, up to x" and "the k-th smallest" in
//! `O(log n)`: what median and outlier rules need without sorting again.
//!
//! A binary search tree with subtree counts and sums, balanced at random: each insertion becomes the
//! root of a subtree of `n` with probability `1/(n+1)`.

/// No node.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct TreeNode {
    value: f64,
    sum: f64,
    count: u32,
    left: u32,
    right: u32,
}

/// Count and sum of a part of the set.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct CountAndSum {
    pub(super) count: usize,
    pub(super) sum: f64,
}

/// The multiset.
#[derive(Debug)]
pub(super) struct Ranked {
    nodes: Vec<TreeNode>,
    free: Vec<u32>,
    root: u32,
    random: u64,
    work: u64,
}

impl Default for Ranked {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL, random: 0x9e37_79b9_7f4a_7c15, work: 0 }
    }
}

impl Ranked {
    /// Builds the set from numbers, in one sort.
    pub(super) fn rebuild(&mut self, mut values: Vec<f64>) {
        values.sort_unstable_by(f64::total_cmp);
        self.work += values.len() as u64;
        self.nodes.clear();
        self.free.clear();
        self.nodes.reserve(values.len());
        self.root = self.build(&values);
    }

    fn build(&mut self, values: &[f64]) -> u32 {
        if values.is_empty() {
            return NIL;
        }
        let middle = values.len() / 2;
        let left = self.build(&values[..middle]);
        let right = self.build(&values[middle + 1..]);
        self.node(values[middle], left, right)
    }

    /// Numbers in the set.
    pub(super) fn len(&self) -> usize {
        self.count(self.root) as usize
    }

    /// Nodes visited so far.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// Adds a number.
    pub(super) fn insert(&mut self, value: f64) {
        self.root = self.insert_at(self.root, value);
    }

    /// Removes a number, if it is in the set.
    pub(super) fn remove(&mut self, value: f64) {
        self.root = self.remove_at(self.root, value);
    }

    /// Count and sum of the numbers below `bound`, or also equal to it.
    pub(super) fn up_to(&mut self, bound: f64, inclusive: bool) -> CountAndSum {
        let mut part = CountAndSum::default();
        let mut at = self.root;
        while at != NIL {
            self.work += 1;
            let node = self.nodes[at as usize];
            if node.value < bound || inclusive && node.value <= bound {
                part.count += self.count(node.left) as usize + 1;
                part.sum += self.sum(node.left) + node.value;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        part
    }

    /// Count and sum of all.
    pub(super) fn all(&self) -> CountAndSum {
        CountAndSum { count: self.len(), sum: self.sum(self.root) }
    }

    /// The number at `rank` in ascending order, from 0.
    ///
    /// # Panics
    /// If `rank` is not below the number of elements.
    pub(super) fn at(&mut self, mut rank: usize) -> f64 {
        let mut at = self.root;
        loop {
            self.work += 1;
            let node = self.nodes[at as usize];
            let left = self.count(node.left) as usize;
            match rank.cmp(&left) {
                std::cmp::Ordering::Less => at = node.left,
                std::cmp::Ordering::Equal => return node.value,
                std::cmp::Ordering::Greater => {
                    rank -= left + 1;
                    at = node.right;
                }
            }
        }
    }

    fn count(&self, at: u32) -> u32 {
        if at == NIL { 0 } else { self.nodes[at as usize].count }
    }

    fn sum(&self, at: u32) -> f64 {
        if at == NIL { 0.0 } else { self.nodes[at as usize].sum }
    }

    fn node(&mut self, value: f64, left: u32, right: u32) -> u32 {
        let node = TreeNode { value, sum: 0.0, count: 0, left, right };
        let at = if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NIL)
        };
        self.update(at)
    }

    fn update(&mut self, at: u32) -> u32 {
        self.work += 1;
        let node = self.nodes[at as usize];
        self.nodes[at as usize].count = 1 + self.count(node.left) + self.count(node.right);
        self.nodes[at as usize].sum = node.value + self.sum(node.left) + self.sum(node.right);
        at
    }

    /// A number below `bound` by xorshift: sufficient for the balance of the tree.
    fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let high = (self.random >> 32) as u32;
        high % bound.max(1)
    }

    fn insert_at(&mut self, at: u32, value: f64) -> u32 {
        if at == NIL {
            return self.node(value, NIL, NIL);
        }
        let size = self.count(at);
        if self.below(size + 1) == size {
            let (left, right) = self.split(at, value);
            return self.node(value, left, right);
        }
        let node = self.nodes[at as usize];
        if value < node.value {
            let left = self.insert_at(node.left, value);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.insert_at(node.right, value);
            self.nodes[at as usize].right = right;
        }
        self.update(at)
    }

    /// Splits into the numbers below `value` and the others.
    fn split(&mut self, at: u32, value: f64) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let node = self.nodes[at as usize];
        if node.value < value {
            let (left, right) = self.split(node.right, value);
            self.nodes[at as usize].right = left;
            (self.update(at), right)
        } else {
            let (left, right) = self.split(node.left, value);
            self.nodes[at as usize].left = right;
            (left, self.update(at))
        }
    }

    fn remove_at(&mut self, at: u32, value: f64) -> u32 {
        if at == NIL {
            return NIL;
        }
        let node = self.nodes[at as usize];
        if value == node.value {
            self.free.push(at);
            return self.join(node.left, node.right);
        }
        if value < node.value {
            let left = self.remove_at(node.left, value);
            self.nodes[at as usize].left = left;
        } else {
            let right = self.remove_at(node.right, value);
            self.nodes[at as usize].right = right;
        }
        self.update(at)
    }

    fn join(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        let (l, r) = (self.count(left), self.count(right));
        if self.below(l + r) < l {
            let joined = self.join(self.nodes[left as usize].right, right);
            self.nodes[left as usize].right = joined;
            self.update(left)
        } else {
            let joined = self.join(left, self.nodes[right as usize].left);
            self.nodes[right as usize].left = joined;
            self.update(right)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_sorted_list(
            start in prop::collection::vec(-50..50i32, 0..60),
            steps in prop::collection::vec((any::<bool>(), -50..50i32), 0..120),
        ) {
            let mut list: Vec<f64> = start.iter().copied().map(f64::from).collect();
            let mut set = Ranked::default();
            set.rebuild(list.clone());
            for (add, value) in steps {
                let value = f64::from(value);
                if add {
                    list.push(value);
                    set.insert(value);
                } else {
                    if let Some(at) = list.iter().position(|v| *v == value) {
                        list.swap_remove(at);
                    }
                    set.remove(value);
                }
                list.sort_unstable_by(f64::total_cmp);
                prop_assert_eq!(set.len(), list.len());
                for (rank, value) in list.iter().enumerate() {
                    prop_assert_eq!(set.at(rank), *value);
                }
                for inclusive in [false, true] {
                    let below: Vec<f64> =
                        list.iter().copied().filter(|v| *v < value || inclusive && *v <= value).collect();
                    let part = set.up_to(value, inclusive);
                    prop_assert_eq!(part.count, below.len());
                    prop_assert!((part.sum - below.iter().sum::<f64>()).abs() < 1e-9);
                }
            }
        }
    }
}
