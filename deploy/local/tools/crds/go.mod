// Where the chart's tests take the definitions of PodMonitor, PrometheusRule, Certificate and Issuer
// from. Nothing is built; the modules are only fetched.
module gpudra.io/deploy/local/tools/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
