//! Which step launched which program: from a step marker down through nesting and hand-overs.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
};

use super::host::{HostEvents, Launch};

/// What the host's step markers lead to. A group is the rank of its marker among those that are not inside
/// another step, by start.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The marker of each group, an index into the host's markers.
    pub(super) markers: Vec<u32>,
    /// The group that launched a program.
    pub(super) launches: HashMap<Launch, u32>,
    /// When the host enqueued a program, launched by a group or not.
    pub(super) enqueued: HashMap<Launch, i64>,
    /// Per group, how long its host events waited for input.
    pub(super) input_ps: Vec<i64>,
    /// How many launches there are in all, by groups or not.
    pub(super) launched: usize,
}

/// The nodes of all lines as one graph.
struct Graph<'a> {
    host: &'a HostEvents,
    /// Nodes in order of line, start and descending end.
    order: Vec<u32>,
    /// Per place in `order`: where the nodes nested in it end.
    nested_to: Vec<u32>,
    /// Per place in `order`: whether it lies in another input node.
    inner_input: Vec<bool>,
    /// The places that consume a piece of work.
    consumers: HashMap<(i64, u64), Vec<u32>>,
}

impl<'a> Graph<'a> {
    fn of(host: &'a HostEvents) -> Self {
        let mut order: Vec<u32> = (0..host.nodes.len() as u32).collect();
        order.sort_by_key(|&at| {
            let node = &host.nodes[at as usize];
            (node.line, node.at.start, Reverse(node.at.end))
        });
        let mut graph = Self {
            host,
            nested_to: vec![0; order.len()],
            inner_input: vec![false; order.len()],
            consumers: HashMap::new(),
            order,
        };
        graph.nest();
        graph
    }

    fn nest(&mut self) {
        let mut open: Vec<usize> = Vec::new();
        let mut inputs = 0usize;
        for place in 0..self.order.len() {
            let node = self.host.nodes[self.order[place] as usize];
            while let Some(&top) = open.last() {
                let over = &self.host.nodes[self.order[top] as usize];
                if over.line == node.line && node.at.end <= over.at.end {
                    break;
                }
                inputs -= usize::from(over.input);
                self.nested_to[top] = place as u32;
                open.pop();
            }
            self.inner_input[place] = inputs > 0;
            inputs += usize::from(node.input);
            open.push(place);
            if let Some(work) = node.consumes {
                self.consumers.entry(work).or_default().push(place as u32);
            }
        }
        for place in open {
            self.nested_to[place] = self.order.len() as u32;
        }
    }

    /// The markers' places, by start.
    fn markers(&self) -> Vec<usize> {
        let node = |place: usize| &self.host.nodes[self.order[place] as usize];
        let mut places: Vec<usize> =
            (0..self.order.len()).filter(|&place| node(place).marker.is_some()).collect();
        places.sort_by_key(|&place| node(place).at.start);
        places
    }
}

/// Follows every marker.
pub(super) fn follow(host: &HostEvents) -> Groups {
    let mut graph = Graph::of(host);
    let mut groups = Groups::default();
    let mut seen = vec![false; graph.order.len()];
    for root in graph.markers() {
        if seen[root] {
            continue;
        }
        let group = groups.markers.len() as u32;
        groups.markers.extend(host.nodes[graph.order[root] as usize].marker);
        groups.input_ps.push(0);
        let mut waiting = VecDeque::from([root]);
        while let Some(start) = waiting.pop_front() {
            visit(&mut graph, start, group, &mut seen, &mut groups, &mut waiting);
        }
    }
    groups.launched = host.nodes.iter().filter(|node| node.launch.is_some()).count();
    for node in host.nodes.iter().filter(|node| node.enqueues) {
        if let Some(launch) = node.launch {
            let known = groups.enqueued.entry(launch).or_insert(node.at.start);
            *known = node.at.start.min(*known);
        }
    }
    groups
}

/// Gives `group` to the node at `start`, to what is nested in it, and queues what takes over its work.
///
/// The first producer of a piece of work takes its consumers away: once queued they are seen before the next
/// marker is followed, so no other producer has anything to add. A key that many producers and consumers share
/// is thus walked once.
fn visit(
    graph: &mut Graph<'_>,
    start: usize,
    group: u32,
    seen: &mut [bool],
    groups: &mut Groups,
    waiting: &mut VecDeque<usize>,
) {
    let mut place = start;
    while place < (graph.nested_to[start] as usize).max(start + 1) {
        if seen[place] {
            // All that is nested in it was seen with it.
            place = (graph.nested_to[place] as usize).max(place + 1);
            continue;
        }
        seen[place] = true;
        let node = &graph.host.nodes[graph.order[place] as usize];
        if let Some(launch) = node.launch {
            groups.launches.entry(launch).or_insert(group);
        }
        if node.input && !graph.inner_input[place] {
            let sum = &mut groups.input_ps[group as usize];
            *sum = sum.saturating_add(node.at.len());
        }
        if let Some(consumers) = node.produces.and_then(|work| graph.consumers.remove(&work)) {
            waiting.extend(consumers.iter().map(|&place| place as usize).filter(|&place| !seen[place]));
        }
        place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{
        device_events::Interval,
        host::{HostStep, Node},
    };

    fn node(line: u32, start: i64, end: i64) -> Node {
        Node {
            line,
            at: Interval { start, end },
            marker: None,
            launch: None,
            enqueues: false,
            produces: None,
            consumes: None,
            input: false,
        }
    }

    fn launch(run_id: u64) -> Launch {
        Launch { ordinal: 0, queue_id: 0, run_id, core_type: 0 }
    }

    #[test]
    fn a_piece_of_work_with_many_ends_queues_each_consumer_once() {
        let work = Some((5, 0));
        let mut nodes = vec![node(0, 0, 10_000)];
        nodes.extend((0..100).map(|at| Node { produces: work, ..node(0, 10 * at, 10 * at + 5) }));
        nodes.extend((0..100).map(|at| Node { consumes: work, ..node(1, 10 * at, 10 * at + 5) }));
        let host = HostEvents { nodes, ..HostEvents::default() };
        let mut graph = Graph::of(&host);
        let mut groups = Groups { input_ps: vec![0], ..Groups::default() };
        let mut seen = vec![false; graph.order.len()];
        let mut waiting = VecDeque::new();
        visit(&mut graph, 0, 0, &mut seen, &mut groups, &mut waiting);
        assert_eq!(waiting, (101..=200).collect::<VecDeque<_>>());
    }

    #[test]
    fn markers_reach_launches_by_nesting_and_by_hand_over() {
        let mark = |start_ps, end_ps| HostStep { step_num: Some(start_ps), start_ps, end_ps };
        let host = HostEvents {
            markers: vec![mark(100, 200), mark(0, 90), mark(110, 120)],
            nodes: vec![
                Node { marker: Some(0), ..node(0, 100, 200) },
                Node { marker: Some(1), ..node(0, 0, 90) },
                // Inside the marker at 100: no step of its own.
                Node { marker: Some(2), ..node(0, 110, 120) },
                Node { launch: Some(launch(1)), ..node(0, 10, 20) },
                Node { produces: Some((5, 77)), ..node(0, 150, 160) },
                Node { consumes: Some((5, 77)), ..node(1, 500, 600) },
                Node { launch: Some(launch(2)), ..node(1, 510, 520) },
                Node { launch: Some(launch(3)), enqueues: true, ..node(1, 700, 720) },
                Node { launch: Some(launch(4)), ..node(0, 112, 114) },
                // Only the outermost wait counts.
                Node { input: true, ..node(0, 30, 50) },
                Node { input: true, ..node(0, 35, 40) },
            ],
            ..HostEvents::default()
        };
        let groups = follow(&host);
        assert_eq!(groups.markers, [1, 0]);
        assert_eq!(groups.launches.get(&launch(1)), Some(&0));
        assert_eq!(groups.launches.get(&launch(2)), Some(&1));
        assert_eq!(groups.launches.get(&launch(4)), Some(&1));
        assert_eq!(groups.launches.get(&launch(3)), None);
        assert_eq!(groups.input_ps, [20, 0]);
        assert_eq!(groups.launched, 4);
        assert_eq!(groups.enqueued, HashMap::from([(launch(3), 700)]));
    }
}
