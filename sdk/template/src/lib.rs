//! What this policy does, in one line.
#![forbid(unsafe_code)]

use provost_engine::*;

export_engine!(MyPolicy);

/// Its configuration: one field for each key.
#[derive(Clone, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    deny_method: String,
}

/// What all datapaths of the node share.
struct MyPolicy(Config);

impl FilterPolicy for MyPolicy {
    const KIND: &'static str = "my-policy";
    const SUMMARY: &'static str = "denies calls of one method";
    const EXAMPLE: &'static str = "deny-method = \"/kv.Kv/Delete\"  # the method that nobody may call";
    type Config = Config;
    type Filter = Judge;

    fn configure(config: Config, _: &Environment, _: Option<&SharedState>) -> Result<MyPolicy, ConfigError> {
        if config.deny_method.starts_with('/') { Ok(MyPolicy(config)) } else { Err(ConfigError::new(
                "deny-method",
                "give a path such as /kv.Kv/Delete",
            )) }
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<Judge, AttachError> {
        let is_denied = |method: &MethodContext| *method.path == *self.0.deny_method;
        Ok(Judge {
            denied: datapath_context.methods.iter().map(is_denied).collect(),
        })
    }
}

/// What judges on one datapath. Each is on one thread, so it needs no lock.
struct Judge {
    denied: Vec<bool>,
}

impl Filter for Judge {
    /// What it keeps of each call in flight.
    type Call = ();

    fn watch(&self) -> Watch {
        Watch::BEGINNINGS
    }

    fn judge(&mut self, _call: &mut (), step: &mut StepView<'_>) -> Verdict {
        match self.denied.get(usize::from(step.method_index())) {
            Some(true) => Verdict::Deny(Denial::new(Code::PermissionDenied, "this method is closed")),
            _ => Verdict::Pass,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provost_engine::rig::{Rig, Service, end_of, policy};

    #[test]
    fn one_method_is_closed() {
        let service = Service::from_source(
            "syntax = \"proto3\"; package t; message M {}
             service S { rpc Get(M) returns (M); rpc Delete(M) returns (M); }",
        );
        let policy = policy(&*kind_of::<MyPolicy>(), "deny-method = '/t.S/Delete'", None).unwrap();
        let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
        rig.send(service.request(1, 0, &[]));
        rig.send(service.request(2, 1, &[]));
        rig.poll();
        assert_eq!(rig.to_wire().len(), 1);
        assert_eq!(end_of(&rig.to_app()[0]), Some(Code::PermissionDenied));
    }
}
