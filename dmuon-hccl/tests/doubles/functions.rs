//! Functions that a test double exports for tests, as functions of Rust's.

/// Declares functions of the double that is loaded as `$double`.
macro_rules! functions {
    (of $double:ident: $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*)
        $(-> $output:ty)? = $symbol:literal;)*) =>
    {$(
        $(#[$doc])*
        pub(crate) fn $name($($argument: $type),*) $(-> $output)? {
            type Function = unsafe extern "C" fn($($type),*) $(-> $output)?;
            // SAFETY: the double has this signature for this name.
            let function = unsafe { $double.get::<Function>($symbol) };
            let function = function.expect("the double has it");
            // SAFETY: takes numbers; those that are addresses are of memory that is alive, with so
            // many bytes.
            unsafe { function($($argument),*) }
        }
    )*};
}
