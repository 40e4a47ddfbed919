# docker build -f release/images/module.Dockerfile build/images    (after make images)
FROM scratch
COPY module /
