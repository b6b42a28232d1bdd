//! [`ExtensionMap`]: values of a program's own that stay beside a request or a response and never leave the process.

use std::any::Any;

/// Values beside a [`Request`](crate::Request) or a [`Response`](crate::Response), one of each type. They do not travel:
/// interceptors, layers and handlers of one process leave them for each other.
///
/// ```
/// use provost::ExtensionMap;
///
/// #[derive(Clone, Debug, PartialEq)]
/// struct Tenant(u32);
///
/// let mut extensions = ExtensionMap::new();
/// assert_eq!(extensions.insert(Tenant(7)), None);
/// assert_eq!(extensions.get::<Tenant>(), Some(&Tenant(7)));
/// assert_eq!(extensions.remove::<Tenant>(), Some(Tenant(7)));
/// assert!(extensions.is_empty());
/// ```
#[derive(Clone, Default)]
pub struct ExtensionMap {
    /// A request has few, so that a list is found through as fast as a table; an empty one takes no memory.
    values: Vec<Box<dyn ExtensionValue>>,
}

impl ExtensionMap {
    /// No values. Takes no memory.
    #[must_use]
    pub const fn new() -> ExtensionMap {
        ExtensionMap { values: Vec::new() }
    }

    /// Puts a value in, and gives back the one of its type that was there.
    pub fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        let before = self.remove();
        self.values.push(Box::new(HeldValue(value)));
        before
    }

    /// The value of this type.
    #[must_use]
    pub fn get<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        self.values.iter().find_map(|value| value.as_any().downcast_ref())
    }

    /// The value of this type, to be changed.
    #[must_use]
    pub fn get_mut<T: Clone + Send + Sync + 'static>(&mut self) -> Option<&mut T> {
        self.values
            .iter_mut()
            .find_map(|value| value.as_any_mut().downcast_mut())
    }

    /// Takes the value of this type out.
    pub fn remove<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        let mut values = self.values.iter();
        let at = values.position(|value| value.as_any().is::<T>())?;
        let held = self.values.swap_remove(at).into_any().downcast::<HeldValue<T>>();
        held.ok().map(|held| held.0)
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl std::fmt::Debug for ExtensionMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtensionMap").field("len", &self.len()).finish()
    }
}

/// A value whose type is forgotten but for how to copy it.
trait ExtensionValue: Send + Sync {
    fn copied(&self) -> Box<dyn ExtensionValue>;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

struct HeldValue<T>(T);

impl<T: Clone + Send + Sync + 'static> ExtensionValue for HeldValue<T> {
    fn copied(&self) -> Box<dyn ExtensionValue> {
        Box::new(HeldValue(self.0.clone()))
    }

    fn as_any(&self) -> &dyn Any {
        &self.0
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        &mut self.0
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Clone for Box<dyn ExtensionValue> {
    fn clone(&self) -> Box<dyn ExtensionValue> {
        self.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_values_of_its_own() {
        let mut first = ExtensionMap::new();
        first.insert(1_u32);
        first.insert("text".to_owned());
        let mut second = first.clone();
        assert_eq!(second.insert(2_u32), Some(1));
        second.get_mut::<String>().unwrap().push_str(" of its own");
        assert_eq!((first.get::<u32>(), first.len()), (Some(&1), 2));
        assert_eq!(first.get::<String>().unwrap(), "text");
        assert_eq!(second.remove::<String>().unwrap(), "text of its own");
        assert_eq!((second.get::<u64>(), second.len()), (None, 1));
    }
}
