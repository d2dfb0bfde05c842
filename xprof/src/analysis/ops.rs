//! Operations: what a plane's event metadata says of them, and their totals.

use std::{
    collections::HashMap,
    io::{Read, Seek},
};

use super::{
    category::{self, Class, Collective},
    op_detail::{DetailStats, OpDetail, Texts, Work},
};
use crate::{
    reader::{ById, PlaneIndex, Reader},
    wire::Error,
};

/// The maximum number of operations of one plane with their own row. The others share one row.
const MOST: usize = 1 << 17;
/// How much of a name is kept.
const LONGEST_NAME: usize = 200;

/// Sums over the executions of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// How often it ran.
    pub occurrences: u64,
    /// How long, children included.
    pub time_ps: i64,
    /// How long, children excluded.
    pub self_time_ps: i64,
}

impl Totals {
    pub(super) fn add(&mut self, other: Totals) {
        self.occurrences += other.occurrences;
        self.time_ps = self.time_ps.saturating_add(other.time_ps);
        self.self_time_ps = self.self_time_ps.saturating_add(other.self_time_ps);
    }
}

/// One operation of a plane.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) name: String,
    pub(super) category: String,
    pub(super) program: Option<u64>,
    /// Its number within the program; XProf drops an operation without.
    pub(super) symbol: Option<u64>,
    pub(super) class: Class,
    pub(super) off_duty: bool,
    /// A custom call of which no floating-point work is known, such as most kernels of one's own: XProf does
    /// not take it for busy.
    pub(super) flopless_call: bool,
    pub(super) collective: Option<Collective>,
    pub(super) detail: OpDetail,
    pub(super) totals: Totals,
}

/// The operations of a plane, by metadata id.
#[derive(Debug, Default)]
pub(super) struct PlaneOps {
    pub(super) ops: Vec<Op>,
    by_id: ById<u32>,
    other: Option<u32>,
}

impl PlaneOps {
    /// Reads what the plane's event metadata says.
    pub(super) fn read<R: Read + Seek>(
        reader: &mut Reader<R>,
        plane: &PlaneIndex,
        texts: &mut Texts,
    ) -> Result<Self, Error> {
        let names = &plane.stat_names;
        let [hlo_category, program_id, symbol_id] =
            ["hlo_category", "program_id", "symbol_id"].map(|name| names.id(name));
        let detail_stats = DetailStats::of(names);
        let mut table = Self::default();
        reader.event_metadata(plane, |entry| {
            if table.ops.len() >= MOST {
                return Ok(());
            }
            let (mut category, mut program, mut symbol) = (None, None, None);
            let mut detail = OpDetail::default();
            let mut stats = entry.stats();
            while let Some(stat) = stats.next_stat()? {
                let id = Some(stat.metadata_id);
                if id == hlo_category {
                    category = stat.value.text(names).map(std::borrow::Cow::into_owned);
                } else if id == program_id {
                    program = stat.value.uint();
                } else if id == symbol_id {
                    symbol = stat.value.uint();
                } else {
                    detail_stats.read(stat, names, texts, &mut detail);
                }
            }
            let text = String::from_utf8_lossy(entry.name);
            let shown = if entry.display_name.is_empty() { entry.name } else { entry.display_name };
            let shown = shorten(&String::from_utf8_lossy(shown)).to_owned();
            let mut op = Op::new(shown, category.unwrap_or_default(), &text);
            op.program = program;
            op.symbol = symbol.filter(|&symbol| symbol != 0);
            op.flopless_call = op.category == "custom-call" && detail.flops.unwrap_or(0) == 0;
            op.detail = detail;
            table.by_id.set(entry.id, table.ops.len() as u32);
            table.ops.push(op);
            Ok::<_, Error>(())
        })?;
        Ok(table)
    }

    /// The operation of a metadata id; ids without metadata share one nameless operation.
    #[inline]
    pub(super) fn index(&mut self, id: i64) -> u32 {
        match self.by_id.get(id) {
            Some(&at) => at,
            None => self.unknown(),
        }
    }

    #[cold]
    fn unknown(&mut self) -> u32 {
        *self.other.get_or_insert_with(|| {
            self.ops.push(Op::new("(unknown)".to_owned(), String::new(), ""));
            self.ops.len() as u32 - 1
        })
    }

    /// The name of a metadata id; empty where there is none.
    pub(super) fn name(&self, id: i64) -> &str {
        self.by_id.get(id).map_or("", |&at| &self.ops[at as usize].name)
    }
}

impl Op {
    fn new(name: String, category: String, text: &str) -> Self {
        let collective = Collective::of(&category, &name, text);
        Self {
            class: category::class(&category, collective),
            off_duty: category::is_off_duty(&category),
            flopless_call: false,
            program: None,
            symbol: None,
            collective,
            name,
            category,
            detail: OpDetail::default(),
            totals: Totals::default(),
        }
    }
}

/// The start of `name` that is kept.
pub(super) fn shorten(name: &str) -> &str {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

/// What tells one row of the operation table from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpKey {
    /// The operation's short name.
    pub name: String,
    /// Its HLO category; for host operations its opcode.
    pub category: String,
    /// The id of its program; none for host operations.
    pub program: Option<u64>,
    /// Its number within the program, if rows are separated by it, as in XProf.
    pub symbol: Option<u64>,
}

/// One row of the operation table.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpRow {
    /// Its executions.
    pub totals: Totals,
    /// What the compiler said of the operation.
    pub(super) detail: OpDetail,
    /// The work of all executions.
    pub(super) work: Work,
}

/// The operations of a host.
#[derive(Debug, Clone, Default)]
pub struct OpTable {
    pub(super) rows: HashMap<OpKey, OpRow>,
    pub(super) texts: Texts,
}

impl OpTable {
    /// Adds to the row of `key`.
    pub(super) fn add(&mut self, key: OpKey, totals: Totals, detail: OpDetail) {
        let row = if self.rows.len() < MOST || self.rows.contains_key(&key) {
            self.rows.entry(key).or_insert_with(|| OpRow { detail, ..OpRow::default() })
        } else {
            let (name, category) = ("(all further operations)".to_owned(), String::new());
            self.rows.entry(OpKey { name, category, program: None, symbol: None }).or_default()
        };
        row.totals.add(totals);
        row.work.add(&detail, totals.occurrences);
    }

    /// The rows, greatest self time first.
    pub(super) fn sorted(&self) -> Vec<(&OpKey, &OpRow)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by(|(a, at), (b, bt)| {
            bt.totals.self_time_ps.cmp(&at.totals.self_time_ps).then_with(|| a.cmp(b))
        });
        rows
    }
}
