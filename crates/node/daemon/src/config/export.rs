//! Routes that other nodes may use: `export` and `app` of `[[route]]`.

use provost_wire::limits::NAME_BYTES_MAX;

use super::{Config, RouteConfig};
use crate::policies::matches;

impl RouteConfig {
    /// Why it cannot be exported.
    fn not_exportable(&self) -> Option<&'static str> {
        if !self.transport.network().leads_to_servers() {
            Some(
                "only a route with transport = \"grpc\" is exported: give the nodes that call routes of their own to other nodes",
            )
        } else if self.service == "*" {
            Some("would let other nodes call everything: give each exported service a route")
        } else {
            None
        }
    }
}

impl Config {
    /// The app that serves calls of other nodes for a service that no app of this node has bound, if its route is exported.
    pub(crate) fn exported(&self, service: &str) -> Option<&str> {
        let route = self.routes.iter().find(|route| route.service == service)?;
        route.app.as_deref().filter(|_| route.export)
    }

    /// What is wrong with the keys of a route that have to do with other nodes.
    pub(super) fn export_problems(&self, route: &RouteConfig) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if route.export {
            let problem = route.not_exportable().map(str::to_owned);
            problems.extend(problem.map(|problem| ("export", problem)));
            problems.extend(self.serving_problem(route).map(|problem| ("app", problem)));
        } else if route.app.is_some() {
            let problem = "says which app serves calls of other nodes: add export = true, or remove it";
            problems.push(("app", problem.to_owned()));
        }
        problems
    }

    /// Why the app of an exported route may not serve it.
    fn serving_problem(&self, route: &RouteConfig) -> Option<String> {
        let Some(app) = &route.app else {
            let problem =
                "is missing: say which app serves calls of other nodes here, for policies and listings";
            return Some(problem.to_owned());
        };
        if app.is_empty() || app.len() > NAME_BYTES_MAX {
            return Some(format!("write a name of 1 to {NAME_BYTES_MAX} bytes"));
        }
        if self.apps.is_empty() {
            return None;
        }
        let service = &route.service;
        let Some(table) = self.app_table(app) else {
            return Some(format!(
                "no [[app]] has the name \"{app}\": add one, with may_bind = [\"{service}\"]"
            ));
        };
        if table.has_conditions() {
            return Some(format!(
                "[[app]] \"{}\" says whose processes have the name, and no process serves this: give the route an app of its own",
                table.name
            ));
        }
        let lists = [("may_bind", &table.may_bind), ("may_connect", &table.may_connect)];
        let lacks = |patterns: &[String]| !patterns.iter().any(|pattern| matches(pattern, service));
        let (key, _) = lists.into_iter().find(|(_, patterns)| lacks(patterns))?;
        Some(format!(
            "{key} of [[app]] \"{}\" does not have \"{service}\": add it",
            table.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigError;

    const ROUTE: &str = "[[route]]\nservice = \"a.B\"\ntransport = \"grpc\"\nendpoints = [\"h:1\"]\n";

    fn problems(text: &str) -> Vec<String> {
        match Config::parse(text, "test") {
            Err(ConfigError::Invalid { problems, .. }) => {
                let problems = problems.into_iter();
                problems.map(|at| format!("{}: {}", at.key, at.message)).collect()
            }
            other => panic!("expected problems, got {other:?}"),
        }
    }

    #[test]
    fn a_route_is_exported_under_the_name_of_an_app() {
        let config = Config::parse(&format!("{ROUTE}export = true\napp = \"b\"\n"), "test").unwrap();
        assert_eq!(config.exported("a.B"), Some("b"));
        assert_eq!(config.exported("a.C"), None);
        assert_eq!(Config::parse(ROUTE, "test").unwrap().exported("a.B"), None);
    }

    #[test]
    fn nothing_is_exported_by_accident() {
        let exported = "export = true\napp = \"b\"\n";
        for (text, problem) in [
            (format!("{ROUTE}export = true\n"), "route[0].app: is missing"),
            (format!("{ROUTE}app = \"b\"\n"), "add export = true"),
            (ROUTE.replace("grpc", "tcp") + exported, "only a route with"),
            (ROUTE.replace("a.B", "*") + exported, "call everything"),
        ] {
            let found = problems(&text);
            assert!(matches!(&found[..], [one] if one.contains(problem)), "{found:?}");
        }
    }

    #[test]
    fn where_apps_have_tables_that_of_an_exported_route_has_its_service() {
        let exported = format!("{ROUTE}export = true\napp = \"b\"\n");
        for (table, problem) in [
            ("name = \"c\"", "no [[app]] has the name"),
            ("name = \"b\"", "may_bind of [[app]] \"b\""),
            (
                "name = \"b\"\nmay_bind = [\"a.*\"]\nmay_connect = []",
                "may_connect of",
            ),
            (
                "name = \"b\"\nmay_bind = [\"a.*\"]\nusers = [1]",
                "an app of its own",
            ),
        ] {
            let found = problems(&format!("{exported}[[app]]\n{table}\n"));
            assert!(matches!(&found[..], [one] if one.contains(problem)), "{found:?}");
        }
        let good = format!("{exported}[[app]]\nname = \"b\"\nmay_bind = [\"a.B\"]\n");
        assert!(Config::parse(&good, "test").is_ok());
    }
}
