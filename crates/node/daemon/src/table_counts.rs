//! How many apps each `[[app]]` table has, counted as they come and go, so that nobody looks at all of them for each that comes.

use std::collections::HashMap;
use std::rc::Rc;

use crate::config::Config;

/// The counts by one configuration. Another one may have the same apps in other tables: then they are counted anew, once.
#[derive(Default)]
pub(crate) struct TableCounts {
    by: Option<Rc<Config>>,
    /// By the name of the table.
    counts: HashMap<String, usize>,
}

impl TableCounts {
    /// How many apps a table of this configuration has, where `names` gives the names of all apps.
    pub(crate) fn of_table<'a, N: IntoIterator<Item = &'a str>>(
        &mut self,
        live: &Rc<Config>,
        table: &str,
        names: impl FnOnce() -> N,
    ) -> usize {
        if !self.by.as_ref().is_some_and(|by| Rc::ptr_eq(by, live)) {
            self.by = Some(Rc::clone(live));
            self.counts.clear();
            names().into_iter().for_each(|name| self.count_in(name));
        }
        self.counts.get(table).copied().unwrap_or(0)
    }

    /// An app of this name has come.
    pub(crate) fn count_in(&mut self, name: &str) {
        if let Some(table) = self.by.as_ref().and_then(|by| by.app_table(name)) {
            *self.counts.entry(table.name.clone()).or_default() += 1;
        }
    }

    /// An app of this name has gone.
    pub(crate) fn count_out(&mut self, name: &str) {
        let table = self.by.as_ref().and_then(|by| by.app_table(name));
        if let Some(count) = table.and_then(|table| self.counts.get_mut(&table.name)) {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use provost_random::SeededRandom;

    use super::*;

    fn config(tables: &[&str]) -> Rc<Config> {
        let text: String = tables
            .iter()
            .map(|name| format!("[[app]]\nname = \"{name}\"\nattachments = 3\n"))
            .collect();
        Rc::new(Config::parse(&text, "test").unwrap())
    }

    #[test]
    fn apps_are_counted_as_they_come_and_go_and_all_of_them_only_after_a_reload() {
        let names = ["web", "web-1", "web-2", "kv", "other"];
        let [first, second] = [&["web", "web*", "kv"][..], &["web*", "k?"]].map(config);
        let mut counts = TableCounts::default();
        let mut attached: Vec<&str> = Vec::new();
        let mut random = SeededRandom::new(7);
        let mut counted_anew = 0;
        for round in 0..2_000 {
            let live = if round < 1_000 { &first } else { &second };
            if random.one_in(2) || attached.is_empty() {
                let name = names[random.below(names.len() as u64) as usize];
                attached.push(name);
                counts.count_in(name);
            } else {
                let gone = attached.swap_remove(random.below(attached.len() as u64) as usize);
                counts.count_out(gone);
            }
            for table in &live.apps {
                let of_table = |name: &&&str| live.app_table(name).map(|of| &of.name) == Some(&table.name);
                let expected = attached.iter().filter(of_table).count();
                let counted = counts.of_table(live, &table.name, || {
                    counted_anew += 1;
                    attached.iter().copied()
                });
                assert_eq!(counted, expected, "round {round}, {}", table.name);
            }
        }
        assert_eq!(counted_anew, 2, "once for each configuration");
    }
}
