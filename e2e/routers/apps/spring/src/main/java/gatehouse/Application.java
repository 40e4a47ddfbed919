package gatehouse;

import jakarta.servlet.http.HttpServletRequest;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.DeleteMapping;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;

/** The resources of package routers, in Spring MVC on Tomcat. */
@SpringBootApplication
@RestController
public class Application {

    public static void main(String[] args) {
        SpringApplication.run(Application.class, args);
    }

    @GetMapping({"/v1/products/{id}", "/v1/products/{id}/"})
    ResponseEntity<String> product(HttpServletRequest request) {
        return serve("products", request);
    }

    @PostMapping({"/v1/telemetry", "/v1/telemetry/", "/v1/telemetry/{stream}", "/v1/telemetry/{stream}/"})
    ResponseEntity<String> telemetry(HttpServletRequest request) {
        return serve("telemetry", request);
    }

    @GetMapping({"/v1/telemetry", "/v1/telemetry/", "/v1/telemetry/{stream}", "/v1/telemetry/{stream}/"})
    ResponseEntity<String> readTelemetry(HttpServletRequest request) {
        return serve("telemetry-read", request);
    }

    @RequestMapping({"/v1/fleet/config", "/v1/fleet/config/"})
    ResponseEntity<String> fleet(HttpServletRequest request) {
        return serve("fleet-config", request);
    }

    @RequestMapping({"/v1/me/config", "/v1/me/config/"})
    ResponseEntity<String> me(HttpServletRequest request) {
        return serve("me-config", request);
    }

    @RequestMapping({"/v1/admin/health", "/v1/admin/health/"})
    ResponseEntity<String> health(HttpServletRequest request) {
        return serve("health", request);
    }

    @RequestMapping({"/v1/admin/users", "/v1/admin/users/", "/v1/admin/users/{id}", "/v1/admin/users/{id}/"})
    ResponseEntity<String> users(HttpServletRequest request) {
        return serve("users", request);
    }

    @GetMapping({"/v1/devices/{id}", "/v1/devices/{id}/"})
    ResponseEntity<String> device(HttpServletRequest request) {
        return serve("device-read", request);
    }

    @PutMapping({"/v1/devices/{id}", "/v1/devices/{id}/"})
    ResponseEntity<String> putDevice(HttpServletRequest request) {
        return serve("device", request);
    }

    @DeleteMapping({"/v1/devices/{id}", "/v1/devices/{id}/"})
    ResponseEntity<String> deleteDevice(HttpServletRequest request) {
        return serve("device", request);
    }

    @RequestMapping("/files/**")
    ResponseEntity<String> file(HttpServletRequest request) {
        return serve("files", request);
    }

    private static ResponseEntity<String> serve(String resource, HttpServletRequest request) {
        String device = request.getHeader("x-gatehouse-device");
        String path = request.getServletPath(); // decoded, without parameters
        return ResponseEntity.ok()
            .header("x-served", resource)
            .header("x-saw", request.getMethod() + " " + escape(path))
            .header("x-saw-device", device == null ? "" : escape(device))
            .body("served " + resource + "\n");
    }

    private static String escape(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20").replace("%2F", "/");
    }
}
