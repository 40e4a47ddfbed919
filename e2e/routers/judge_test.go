package routers

import "testing"

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		who   string
		a     answer
		wrong bool
	}{
		{"refused", "nobody", answer{status: 401}, false},
		{"refused in gRPC", "nobody", answer{status: 200, grpc: true}, false},
		{"no answer", "nobody", answer{}, false},
		{"open", "nobody", answer{status: 200, byRouter: true, served: "products"}, false},
		{"no such resource", "nobody", answer{status: 404, byRouter: true}, false},
		{"let in", "root", answer{status: 200, byRouter: true, served: "users", sawDevice: "root"}, false},
		{"open, judged all the same", "root", answer{status: 200, byRouter: true, served: "health", sawDevice: "root"},
			false},
		{"published, open", "nobody", answer{status: 200, cached: "products"}, false},
		{"published for all with a permission", "reader", answer{status: 304, cached: "fleet-config"}, false},
		{"published for one", "reader", answer{status: 200, cached: "me-config:reader"}, false},

		{"protected, nobody", "nobody", answer{status: 200, byRouter: true, served: "users"}, true},
		{"protected, nobody, said to be root", "nobody", answer{status: 200, byRouter: true,
			served: "users", sawDevice: "root"}, true},
		{"protected, wrong secret", "wrong", answer{status: 200, byRouter: true, served: "users"}, true},
		{"protected, half a credential", "half", answer{status: 200, byRouter: true, served: "users"}, true},
		{"protected, another permission", "reader", answer{status: 200, byRouter: true,
			served: "users", sawDevice: "reader"}, true},
		{"protected, and not judged", "root", answer{status: 200, byRouter: true, served: "users"}, true},
		{"a protected resource with a status of no success", "nobody", answer{status: 500, byRouter: true,
			served: "users"}, true},
		{"forged device on an open resource", "nobody", answer{status: 200, byRouter: true,
			served: "files", sawDevice: "root"}, true},
		{"forged device where there is no resource", "nobody", answer{status: 404, byRouter: true, sawDevice: "root"}, true},
		{"another device's name", "reader", answer{status: 200, byRouter: true, served: "fleet-config",
			sawDevice: "root"}, true},
		{"published and protected, nobody", "nobody", answer{status: 200, cached: "fleet-config"}, true},
		{"published and protected, as 304", "writer", answer{status: 304, cached: "fleet-config"}, true},
		{"published for another", "root", answer{status: 200, cached: "me-config:reader"}, true},
		{"never published", "nobody", answer{status: 200}, true},
		{"no resource of ours", "root", answer{status: 200, byRouter: true, served: "admin", sawDevice: "root"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := judgeAnswer(identityOf(tt.who), tt.a); (got != "") != tt.wrong {
				t.Errorf("got %q, want wrong: %v", got, tt.wrong)
			}
		})
	}
}
