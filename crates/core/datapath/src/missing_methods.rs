//! Methods that a client's schema has and its server's lacks: how their calls are refused.

use crate::{FieldReader, FieldWriter, RestoreError, SavedField};

/// How many of a connection's missing methods are kept by name. The client's end determines how many there are.
const NAMED_METHODS_MAX: usize = 32;

/// The status message of a call whose service has no such method, wherever that is noticed.
#[must_use]
pub fn no_such_method(service: &str, method: &str) -> String {
    format!("the service {service} has no method {method}")
}

/// The methods of a connection that its server lacks, each by its number in the client's schema, its service and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingMethods(Vec<(u16, (String, String))>);

impl MissingMethods {
    /// Those of the client's methods, in the order of its schema, for which `is_missing` holds.
    pub fn of<'a>(
        service: &str,
        client_methods: impl Iterator<Item = &'a str>,
        mut is_missing: impl FnMut(usize) -> bool,
    ) -> MissingMethods {
        let missing = client_methods.enumerate().filter(|(at, _)| is_missing(*at));
        let named = missing.take(NAMED_METHODS_MAX);
        MissingMethods(
            named
                .map(|(at, method)| (at as u16, (service.to_owned(), method.to_owned())))
                .collect(),
        )
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The status message of a call of this method, which is missing.
    #[must_use]
    pub fn reason(&self, method: u16) -> String {
        let named = self.0.iter().find(|(number, _)| *number == method);
        named.map_or_else(
            || format!("the service lacks a method of the client's schema, its number {method}"),
            |(_, (service, method))| no_such_method(service, method),
        )
    }
}

impl SavedField for MissingMethods {
    fn save(&self, out: &mut FieldWriter) {
        out.list(self.0.iter());
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<MissingMethods, RestoreError> {
        fields.list(NAMED_METHODS_MAX).map(MissingMethods)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_names_of_a_client_are_kept() {
        let names: Vec<String> = (0..1_000).map(|at| format!("M{at}")).collect();
        let missing = MissingMethods::of("a.B", names.iter().map(String::as_str), |at| at % 2 == 1);
        assert_eq!(missing.0.len(), NAMED_METHODS_MAX);
        assert_eq!(missing.reason(3), "the service a.B has no method M3");
        assert_eq!(
            missing.reason(999),
            "the service lacks a method of the client's schema, its number 999"
        );
    }
}
