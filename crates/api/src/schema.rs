//! Schemas of values that a subsystem owns: a client reads them as text or JSON, the server registers their schemas.

use utoipa::openapi::{
    OneOfBuilder, Ref, RefOr, Schema,
    schema::{ObjectBuilder, RefBuilder, SchemaType, Type},
};

/// The status of a label in its state.
pub(crate) fn label_status() -> Ref {
    let status = RefBuilder::new().ref_location_from_schema_name("LabelStatus");
    status.description(Some("What it does there.")).build()
}

/// Why a label moved.
pub(crate) fn move_cause() -> Ref {
    Ref::from_schema_name("MoveCause")
}

/// The policy of a host, or none.
pub(crate) fn policy() -> RefOr<Schema> {
    let null = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null));
    let description = "The policy as it was set; absent when there is none.";
    OneOfBuilder::new().item(null).item(Ref::from_schema_name("Policy")).description(Some(description)).into()
}
