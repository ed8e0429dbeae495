//! What more than one store uses. Nothing here knows a store.

#[cfg(any(
    feature = "etcd",
    feature = "file",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
pub(in crate::backends) mod backoff;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redlock"))]
pub(in crate::backends) mod batch;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
pub(in crate::backends) mod foreign;
pub(in crate::backends) mod parameter;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(in crate::backends) mod stream;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(in crate::backends) mod tls;
