module github.com/gatehouse/gatehouse/clients/go

go 1.24.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/andybalholm/brotli v1.2.8
	github.com/klauspost/compress v1.19.0
	github.com/redis/go-redis/v9 v9.20.0
	go.opentelemetry.io/otel/trace v1.40.0
	golang.org/x/crypto v0.48.0
	golang.org/x/sync v0.19.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.opentelemetry.io/otel v1.40.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.41.0 // indirect
)
