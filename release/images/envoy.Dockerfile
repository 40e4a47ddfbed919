# docker build -f release/images/envoy.Dockerfile build/images    (after make images)
FROM scratch
COPY envoy /
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/envoy"]
